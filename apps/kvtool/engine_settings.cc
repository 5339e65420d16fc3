// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/engine_settings.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "lib/core/base/number.h"
#include "lib/engines/mnn/h2o/advised_settings.h"

namespace kv {
namespace {

using nlohmann::ordered_json;

// Under the names of MNN's configuration file.
ordered_json MnnParameters(const eviction::BlockConfig& config) {
  ordered_json json = {{"kv_h2o_enable", true}};
  eviction::ForEachParameter(config, [&](std::string_view name, double value) {
    if (name == "h2o_target_keep_ratio") return;  // read in static mode alone
    const std::string key = fmt::format("kv_{}", name);
    if (name == "h2o_target_mode") {
      json[key] = value == 0 ? "static" : "adaptive";
    } else if (value == std::floor(value)) {
      json[key] = static_cast<int64_t>(value);
    } else {
      json[key] = ShortestDouble(static_cast<float>(value));
    }
  });
  return json;
}

void AddMnn(const advise::Runs& runs, const advise::AdviceRequest& request,
            const advise::Advice& advice, ThreadPool& pool, std::vector<EngineSettings>& out) {
  const auto settings = mnn::h2o::AdviseSettings(runs, request, advice, pool);
  if (!settings) return;
  EngineSettings mnn;
  mnn.engine = "MNN";
  mnn.candidate = settings->candidate;
  mnn.parameters = MnnParameters(settings->config);
  mnn.ratio = 1 / settings->outcome.worst_share();
  mnn.loss = advise::Shown(request.measure.kind, settings->outcome.worst_loss());
  mnn.note = "as its code decides";
  if (settings->compounds) mnn.note += "; " + *settings->compounds;
  out.push_back(mnn);
}

// Engines whose own window has sinks: the same tokens stay as by policy streaming, but for
// `tokens`, a window of so many tokens whatever the length.
ordered_json TensorRtParameters(uint64_t sinks, uint64_t tokens) {
  return {{"max_attention_window", {tokens}}, {"sink_token_length", sinks}};
}
ordered_json MlcParameters(uint64_t sinks, uint64_t tokens) {
  return {{"sliding_window_size", tokens}, {"attention_sink_size", sinks}};
}

void AddStreaming(const advise::AdviceRequest& request, const advise::Advice& advice,
                  uint64_t shortest, std::vector<EngineSettings>& out) {
  const advise::Point* best = nullptr;
  for (const advise::Point& point : advice.found.uniform) {  // by descending share
    const advise::Candidate& candidate = advice.candidates[*point.uniform];
    if (candidate.policy != "streaming" || !advise::Meets(point.outcome, request.limits)) continue;
    const bool loses_less =
        best == nullptr || point.outcome.mean_loss() < best->outcome.mean_loss();
    if (request.limits.loss || loses_less) best = &point;
  }
  if (best == nullptr) return;
  EngineSettings settings;
  settings.candidate = &advice.candidates[*best->uniform];
  settings.ratio = 1 / best->outcome.worst_share();
  settings.loss = advise::Shown(request.measure.kind, best->outcome.worst_loss());
  const uint64_t tokens = settings.candidate->budget.At(shortest);
  settings.note = fmt::format(
      "a window of {} tokens with sinks, as the budget is at {} tokens; the engine may count "
      "positions within its window, which is not measured here",
      tokens, shortest);
  settings.engine = "TensorRT-LLM";
  settings.configuration = "KvCacheConfig";
  settings.parameters = TensorRtParameters(settings.candidate->paper.sinks, tokens);
  out.push_back(settings);
  settings.engine = "MLC LLM";
  settings.configuration = "mlc-chat-config.json";
  settings.parameters = MlcParameters(settings.candidate->paper.sinks, tokens);
  out.push_back(settings);
}

}  // namespace

std::vector<EngineSettings> EngineSettingsOf(const advise::Runs& runs,
                                             const advise::AdviceRequest& request,
                                             const advise::Advice& advice, ThreadPool& pool) {
  uint64_t shortest = UINT64_MAX;
  for (const auto& run : runs) shortest = std::min(shortest, run->end());
  std::vector<EngineSettings> settings;
  AddMnn(runs, request, advice, pool, settings);
  AddStreaming(request, advice, shortest, settings);
  return settings;
}

ordered_json SettingsJson(const std::vector<EngineSettings>& settings) {
  ordered_json json = ordered_json::array();
  for (const EngineSettings& each : settings) {
    json.push_back({{"engine", each.engine},
                    {"policy", each.candidate->policy},
                    {"budget", each.candidate->budget.Text()},
                    {"parameters", each.parameters},
                    {"ratio", each.ratio},
                    {"loss", each.loss},
                    {"note", each.note},
                    {"configuration", nullptr}});
    if (!each.configuration.empty()) json.back()["configuration"] = each.configuration;
  }
  return json;
}

}  // namespace kv
