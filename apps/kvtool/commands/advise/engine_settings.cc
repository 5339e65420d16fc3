// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/advise/engine_settings.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "lib/core/base/number.h"
#include "lib/engines/mnn/h2o/advised_settings.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"
#include "lib/study/advise/report.h"

namespace kv {
namespace {

// Under the names of MNN's configuration file.
Value MnnParameters(const eviction::BlockConfig& config) {
  Value parameters = Value::Object{{"kv_h2o_enable", true}};
  mnn::h2o::ForEachParameter(config, [&](std::string_view name, double value) {
    if (name == "h2o_target_keep_ratio") return;  // read in static mode alone
    const std::string key = fmt::format("kv_{}", name);
    if (name == "h2o_target_mode") {
      parameters.Put(key, value == 0 ? "static" : "adaptive");
    } else if (value == std::floor(value)) {
      parameters.Put(key, static_cast<int64_t>(value));
    } else {
      parameters.Put(key, ShortestDouble(static_cast<float>(value)));
    }
  });
  return parameters;
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
Value TensorRtParameters(uint64_t sinks, uint64_t tokens) {
  return Value::Object{{"max_attention_window", Value::List{tokens}}, {"sink_token_length", sinks}};
}
Value MlcParameters(uint64_t sinks, uint64_t tokens) {
  return Value::Object{{"sliding_window_size", tokens}, {"attention_sink_size", sinks}};
}

void AddStreaming(const advise::AdviceRequest& request, const advise::Advice& advice,
                  uint64_t shortest, std::vector<EngineSettings>& out) {
  const advise::Point* best = nullptr;
  for (const advise::Point& point : advice.found.uniform) {  // by descending share
    const advise::Candidate& candidate = advice.candidates[*point.uniform];
    if (eviction::FindPolicy(candidate.policy)->tuned_by != eviction::Tuning::kSinks ||
        !advise::Meets(point.outcome, request.limits))
      continue;
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

const Fields<EngineSettings>& EngineSettingsFields() {
  using S = EngineSettings;
  static const Fields<S> fields = {
      {"engine", "The engine", &S::engine},
      {"policy", "Name of the policy that the engine follows",
       [](const S& of) { return of.candidate->policy; }},
      {"budget", "What may stay: a share of the tokens, or a number of tokens as \"512t\"",
       [](const S& of) { return of.candidate->budget.Text(); }},
      {"parameters",
       "The engine's own parameters under its own names",
       &S::parameters,
       {.schema = Value::Object{{"type", "object"}}}},
      {"ratio",
       "Whole cache / what is kept at the end, in the run that keeps most",
       &S::ratio,
       {.least = advise::kLeastRatio}},
      {"loss", "Largest loss of a run, in the unit that loss.unit names", &S::loss, {.least = 0}},
      {"note", "What to know before the settings are used", &S::note},
      {"configuration", "Which of the engine's configurations takes the parameters; null: its own",
       [](const S& of) {
         return of.configuration.empty() ? std::nullopt : std::optional(of.configuration);
       }}};
  return fields;
}

}  // namespace kv
