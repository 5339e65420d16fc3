// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Replays one case of the runtime suite: every row by the engine's calls, speeds beside a replay
// without the case's parameters, and the offline estimate.
#include "lib/engines/mnn/gate/replay_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lib/core/base/error.h"
#include "lib/core/snapshot/cast.h"
#include "lib/engines/mnn/offline/offline.h"

namespace kv::mnn {
namespace {

using namespace gate;

constexpr std::string_view kOfflineRatio = "lossless_selected_value";

std::string WhyNoAttention(const Subject& subject) {
  if (subject.trace == nullptr) return "no attention trace: give 'trace'";
  if (subject.trace->block_scores) return "a trace of block scores holds no attention rows";
  if (subject.trace->layers.empty()) return "the trace has no attention rows";
  const bool values =
      std::all_of(subject.trace->layers.begin(), subject.trace->layers.end(),
                  [&](const TraceLayer& rows) { return subject.snapshot.Find(rows.layer)->v; });
  return values ? std::string() : "the snapshot has no values";
}

// Measures the cost in attention of the plans by which the row's cache was compacted.
AttentionCost MeasureAttention(const runtime::ReplayResult& row, const Subject& subject) {
  AttentionCost cost;
  cost.missing = WhyNoAttention(subject);
  if (!cost.missing.empty()) return cost;
  AttentionSamples pooled;
  const Snapshot values = WithoutHadamard(subject.snapshot, subject.pool);
  for (const TraceLayer& rows : subject.trace->layers) {
    const LayerAttention attention(*subject.trace, rows, *values.Find(rows.layer));
    const auto plan =
        std::find_if(row.plans.begin(), row.plans.end(),
                     [&](const eviction::LayerPlan& p) { return p.layer == rows.layer; });
    KV_ASSERT(plan != row.plans.end());
    const eviction::LayerPlan* const plans[] = {&*plan};
    const eviction::MeasuredRows measured = eviction::ChooseRows(
        row.prompt, std::min(attention.end_row(), row.end), 0, 0);  // a verdict uses all rows
    cost.layers.push_back(
        eviction::MeasureLayer(attention, plans, measured, {&pooled, 1}, subject.pool).front());
  }
  cost.summary = pooled.Summarise();
  cost.evicting = pooled.SummariseEvicting();
  return cost;
}

// Returns the estimate of MNN's gate, computed one layer at a time: groups and chunks never cross
// layers, so the sums are those of one run over all of them.
std::vector<offline::Result> FrontLayers(const Subject& subject) {
  const std::vector<DumpEntry> entries = ListDumpEntries(subject.snapshot);
  offline::Options options = offline::OnlineSimOptions();
  options.scope = offline::Scope::kLayerIds;
  std::vector<offline::Result> results;
  for (int64_t layer = 0; layer < options.front_n; ++layer) {
    options.layer_ids = {layer};
    results.push_back(offline::Simulate(entries, options, subject.pool));
  }
  return results;
}

std::string WhyNothing(const std::vector<offline::Result>& layers) {
  std::string why;
  for (const offline::Result& layer : layers) {
    for (const auto& [reason, count] : layer.skip_reasons) {
      why += fmt::format("{}{} {}", why.empty() ? ": " : ", ", reason, count);
    }
  }
  return "the offline estimate found no 16-bit layer to compress" + why;
}

void Add(const offline::Sizes& part, offline::Sizes& sum) {
  sum.raw += part.raw;
  sum.compressed += part.compressed;
}

// Measures kOfflineRatio as MNN's gate does: by its offline estimate over the cache's front layers,
// in grouped chunks of 192 tokens with 8 framing bytes.
void MeasureOfflineRatio(const Subject& subject, Measurements& measured) {
  const std::vector<offline::Result> layers = FrontLayers(subject);
  offline::Sizes k, v, both;
  Where where;
  double worst = 0;
  for (const offline::Result& layer : layers) {
    Add(layer.k, k);
    Add(layer.v, v);
    for (const auto& [kind, bytes] : {std::pair{"K", &layer.k}, {"V", &layer.v}}) {
      if (bytes->compressed == 0 || (where.layer && bytes->ratio() >= worst)) continue;
      worst = bytes->ratio();
      where.layer = static_cast<uint32_t>(*layer.layers.begin());
      where.kind = kind;
    }
  }
  Add(k, both);
  Add(v, both);
  if (both.compressed == 0) return measured.Missing(kOfflineRatio, WhyNothing(layers));
  if (const LayerKv* layer = subject.snapshot.Find(where.layer.value_or(0))) {
    where.token_begin = 0;
    where.token_end = layer->k.tokens();
  }
  measured.Set(kOfflineRatio, both.ratio(), where,
               fmt::format("offline estimate, K {:.4f}x, V {:.4f}x; worst {:.4f}x here", k.ratio(),
                           v.ratio(), worst));
}

void SetH2o(std::string_view name, const ParamValue& value, eviction::BlockConfig& config) {
  const auto* word = std::get_if<std::string>(&value);
  const double number = word == nullptr ? std::get<double>(value) : (*word == "static" ? 0.0 : 1.0);
  mnn::h2o::SetParameter(name, number, config);
}

void SetLossless(std::string_view name, const ParamValue& value, runtime::Config& config) {
  const auto* word = std::get_if<std::string>(&value);
  const runtime::ParameterValue typed = word != nullptr
                                            ? runtime::ParameterValue(std::string_view(*word))
                                            : runtime::ParameterValue(std::get<double>(value));
  if (runtime::SetParameter(name, typed, config) != runtime::SetResult::kSet) {
    throw Error(Finding::kConfig, "{}: not a value of this parameter", name);
  }
}

// Returns all parameters as the engine computes with them, so that a report shows what was run.
Params Effective(const runtime::ReplayResult& row) {
  Params params = {{"h2o_enable", row.h2o_enabled ? 1.0 : 0.0}};
  mnn::h2o::ForEachParameter(row.h2o, [&](std::string_view name, double value) {
    if (name == "h2o_target_mode") {
      params.emplace_back(std::string(name), std::string(value == 0 ? "static" : "adaptive"));
    } else {
      params.emplace_back(std::string(name), value);
    }
  });
  runtime::ForEachParameter(
      row.lossless, [&](std::string_view name, const runtime::ParameterValue& value) {
        const auto* number = std::get_if<double>(&value);
        params.emplace_back(std::string(name),
                            number != nullptr
                                ? ParamValue(*number)
                                : ParamValue(std::string(std::get<std::string_view>(value))));
      });
  return params;
}

// Runs equal replays with and without the case's parameters in turn, so that load on the machine
// affects both. The first pair warms the caches and is dropped, as in MNN's bench.
gate::Noise MeasureSpeeds(const CaseSpec& spec, runtime::ReplayRequest request,
                          const Subject& subject) {
  gate::Noise noise;
  if (subject.deterministic || subject.trace == nullptr) return noise;
  request.keep_events = false;
  if (!spec.prompt_tokens.empty()) request.prompt_tokens = spec.prompt_tokens.front();
  runtime::ReplayRequest baseline = request;
  baseline.h2o_enable = false;
  baseline.lossless.enable = false;
  noise.seconds = std::numeric_limits<double>::infinity();
  for (uint64_t run = 0; run <= spec.repeat; ++run) {
    for (const bool candidate : {false, true}) {
      const runtime::ReplayResult row = runtime::Replay(
          subject.snapshot, subject.trace, candidate ? request : baseline, subject.pool);
      if (!row.speed || !(row.speed->tokens_per_second() > 0)) return {};
      if (run == 0) continue;
      (candidate ? noise.candidate_tps : noise.baseline_tps)
          .push_back(row.speed->tokens_per_second());
      noise.seconds = std::min(noise.seconds, row.speed->seconds);
    }
  }
  return noise;
}

// Returns the engine's parameters of a case: those that the gate's scripts set for its mode,
// overridden by those that a trace of block scores was recorded with, overridden by the case's own.
runtime::ReplayRequest BuildRequest(const CaseSpec& spec, const Subject& subject) {
  runtime::ReplayRequest request;
  const runtime::Mode mode = runtime::ParseMode(spec.mode).value();
  request.lossless = runtime::GateConfig(mode);
  request.h2o = runtime::GateH2oConfig();
  if (subject.trace != nullptr && subject.trace->block_scores) {
    for (const auto& [name, value] : subject.trace->block_scores->parameters) {
      mnn::h2o::SetParameter(name, value, request.h2o);
    }
  }
  for (const auto& [name, value] : spec.params) {
    if (name == "h2o_enable") continue;
    if (name.starts_with("h2o_lossless_")) {
      SetLossless(name, value, request.lossless);
    } else {
      SetH2o(name, value, request.h2o);
    }
  }
  request.h2o_enable = IsOn(spec.params, "h2o_enable");
  if (!spec.runtime.empty()) request.engine = runtime::ParseEngine(spec.runtime).value();
  request.decode_tokens = spec.decode_tokens;
  request.keep_events = true;
  request.damage = subject.damage;
  return request;
}

// Throws if the row is shorter than requested, as it would be another measurement.
void RequireLength(const CaseSpec& spec, const runtime::ReplayResult& row) {
  if (!spec.decode_tokens || row.end - row.prompt == *spec.decode_tokens) return;
  throw Error(Finding::kUsage,
              "decode_tokens {}: after a prompt of {} the cache or its trace holds {} more tokens",
              *spec.decode_tokens, row.prompt, row.end - row.prompt)
      .In(fmt::format("case '{}'", spec.name));
}

bool AsksForSpeed(const CaseSpec& spec) {
  return std::any_of(spec.rules.begin(), spec.rules.end(), [](const Rule& rule) {
    return rule.metric == "attention_tps" || rule.metric == "attention_drop_ratio";
  });
}

}  // namespace

CaseResult ReplayCase(const CaseSpec& spec, const Subject& subject, Progress* progress,
                      const runtime::RangeCodec* codec) {
  CaseResult result;
  result.spec = spec;
  result.origin = Origin::kReplay;
  runtime::ReplayRequest request = BuildRequest(spec, subject);
  request.codec = codec;
  std::vector<std::optional<uint64_t>> prompts(spec.prompt_tokens.begin(),
                                               spec.prompt_tokens.end());
  if (prompts.empty()) prompts.emplace_back();

  std::vector<ReplayedRow> rows;
  for (const std::optional<uint64_t>& prompt : prompts) {
    request.prompt_tokens = prompt;
    ReplayedRow row;
    row.replay = runtime::Replay(subject.snapshot, subject.trace, request, subject.pool, progress);
    RequireLength(spec, row.replay);
    row.attention = MeasureAttention(row.replay, subject);
    for (const std::string& warning : row.replay.warnings) {
      if (std::count(result.warnings.begin(), result.warnings.end(), warning) == 0) {
        result.warnings.push_back(warning);
      }
    }
    rows.push_back(std::move(row));
  }
  Params effective = Effective(rows.front().replay);
  result.spec.params = std::move(effective);

  if (AsksForSpeed(spec)) result.noise = MeasureSpeeds(spec, request, subject);
  MeasureRows(rows, subject.deterministic, result);
  Measurements own;
  Measurements& shared = subject.of_snapshot == nullptr ? own : *subject.of_snapshot;
  if (shared.Find(kOfflineRatio) == nullptr) MeasureOfflineRatio(subject, shared);
  result.measured.Copy(kOfflineRatio, shared);
  MeasureCache(subject, result);
  return result;
}

}  // namespace kv::mnn
