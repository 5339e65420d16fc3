// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/h2o/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/engines/mnn/h2o/mnn_replay.h"

namespace kv::mnn::h2o {
namespace {

using eviction::EngineCase;
using eviction::EngineRule;
using eviction::EngineRun;

// The clock of the design: it counts tokens, separately in each layer, and its target is a share of
// the cache as it is at each trigger. Token `prompt` is the first decode step.
eviction::LayerSchedule IntervalSchedule(const eviction::BlockConfig& config, uint32_t layer,
                                         uint32_t layers, uint64_t prompt, uint64_t end) {
  eviction::LayerSchedule schedule;
  schedule.layer = layer;
  schedule.in_range = eviction::EvictedLayers(config, layers).Contains(layer);
  if (!schedule.in_range) return schedule;
  const auto interval = static_cast<uint64_t>(config.update_interval);
  uint64_t length = prompt, since_trigger = 0;
  for (uint64_t token = prompt; token < end; ++token) {
    ++length;
    ++since_trigger;
    if (length < static_cast<uint64_t>(config.trigger_min_tokens) || since_trigger < interval) {
      continue;
    }
    since_trigger = 0;
    ++schedule.triggers;
    const eviction::BlockBudget budget = eviction::BlockBudgetOf(config, length);
    if (budget.floor_dominates) {
      ++schedule.floor_dominated;
    } else if (budget.quantised < length) {
      schedule.evictions.push_back({token, length, budget.quantised});
      length = budget.quantised;
    }
  }
  return schedule;
}

std::shared_ptr<const EngineRun> PlanIntervals(const EngineCase& of) {
  auto run = std::make_shared<EngineRun>();
  const auto layers = static_cast<uint32_t>(of.snapshot.layers.size());
  for (uint32_t layer = 0; layer < layers; ++layer) {
    run->schedules.push_back(IntervalSchedule(of.config, layer, layers, of.prompt, of.end));
  }
  return run;
}

MnnGeometry GeometryOf(const EngineCase& of) {
  const KvTensor& k = of.snapshot.layers.front().k;
  // Block types have no whole bytes per element; the engine knows fp16 and fp32.
  const uint32_t bytes = IsBlockQuantised(k.dtype) ? 2 : Info(k.dtype).block_bytes;
  const auto layers = static_cast<uint32_t>(of.snapshot.layers.size());
  return {layers, of.trace.query_heads, k.heads, k.head_dim, bytes};
}

MnnReplay ReplayStream(const EngineCase& of, MnnRevision revision) {
  const BlockScoreStream& stream = *of.trace.block_scores;
  try {
    const auto source = StreamBlockSums(stream.open(), stream.layers, of.prompt);
    return ReplayMnn(of.config, GeometryOf(of), revision, of.prompt, UINT32_MAX, *source);
  } catch (Error& error) {
    throw error.File(of.trace.path);
  }
}

MnnReplay ReplayRows(const EngineCase& of, MnnRevision revision) {
  const std::vector<LayerKv>& layers = of.snapshot.layers;
  if (of.request.granularity != eviction::Granularity::kLayer) {
    throw Error(Finding::kUsage, fmt::format("--granularity kv-head: engine {} decides per layer",
                                             of.request.engine->name));
  }
  const auto range = eviction::EvictedLayers(of.config, static_cast<uint32_t>(layers.size()));
  for (uint32_t i = range.first; revision == MnnRevision::kR6 && i <= range.last; ++i) {
    if (of.trace.Find(layers[i].index) != nullptr) continue;
    throw Error(Finding::kTraceMismatch,
                fmt::format("layer {} has no rows: mnn-r6 folds all layers into one score vector "
                            "and needs every one of the range",
                            layers[i].index))
        .File(of.trace.path);
  }
  // The engine counts layers by their place, whatever the file calls them.
  std::vector<uint32_t> places;
  for (const LayerAttention& attention : of.attentions) {
    const auto found = std::ranges::find(layers, attention.layer(), &LayerKv::index);
    places.push_back(static_cast<uint32_t>(found - layers.begin()));
  }
  const auto block = static_cast<uint64_t>(of.config.block_tokens);
  const auto source = TraceBlockSums(of.attentions, places, block, of.weights, of.pool);
  return ReplayMnn(of.config, GeometryOf(of), revision, of.prompt, of.end, *source);
}

template <MnnRevision revision>
std::shared_ptr<const EngineRun> Plan(const EngineCase& of) {
  const auto replay = of.trace.block_scores ? ReplayStream : ReplayRows;
  return std::make_shared<MnnReplay>(replay(of, revision));
}

constexpr std::string_view kSchedule = "mnn", kRatioName = "h2o_lossy_ratio";
constexpr std::string_view kRatioRemark =
    "h2o_lossy_ratio is the ratio of the engine's last plan alone, relative to that layer's length "
    "at that moment. The true ratio counts every layer as it stands at the end.";

// Says why nothing was evicted, and names the parameter; empty if something was.
std::string WhyNothing(const ReplayResult& result, const ReplayRun& run) {
  if (run.info().spending == eviction::Spending::kNone || run.evictions() > 0) return {};
  const eviction::BlockConfig& config = run.config;
  const uint64_t steps = result.end - result.prompt;
  if (run.budget && run.budget->At(result.end) >= result.end) {
    return fmt::format("the budget of {} holds all {} tokens", run.target_text(), result.end);
  }
  bool in_range = false, traced = false;
  for (const eviction::LayerSchedule& schedule : run.schedules) {
    in_range |= schedule.in_range;
    traced |= schedule.in_range && std::ranges::count(result.traced_layers, schedule.layer) != 0;
  }
  if (!traced) {
    return fmt::format("no layer {}: h2o_layer_start {}, h2o_layer_end {}",
                       in_range ? "with rows in the trace is in the range" : "is in the range",
                       config.layer_start, config.layer_end);
  }
  if (run.budget && run.info().at_prompt_end && result.paper.grow) {
    return fmt::format("{} compresses the prompt alone, of which {} holds all {} tokens",
                       run.policy, run.target_text(), result.prompt);
  }
  if (run.budget && result.end >= static_cast<uint64_t>(config.trigger_min_tokens)) {
    return fmt::format("{} is above the budget after the last row only, and no query follows it",
                       run.policy);
  }
  if (run.triggers() > 0) {
    return fmt::format(
        "{} triggers, but sink and recent blocks alone reach the target: h2o_sink_tokens {}, "
        "h2o_recent_tokens {}, h2o_block_tokens {}",
        run.triggers(), config.sink_tokens, config.recent_tokens, config.block_tokens);
  }
  if (result.end < static_cast<uint64_t>(config.trigger_min_tokens)) {
    return fmt::format(
        "no trigger fired: the cache never reaches h2o_trigger_min_tokens {}, it ends at {}",
        config.trigger_min_tokens, result.end);
  }
  return fmt::format("no trigger fired: h2o_update_interval {} is longer than the {} decode steps",
                     config.update_interval, steps);
}

}  // namespace

const EngineRule kIntervals = {.name = "exact",
                               .text = "exact on the schedule of mnn's final revision",
                               .schedule = kSchedule,
                               .weights = WeightRule::kSoftmax,
                               .plan = PlanIntervals};
const EngineRule kDesign = {.name = "design",
                            .text = "design",
                            .schedule = kSchedule,
                            .ratio_name = kRatioName,
                            .ratio_remark = kRatioRemark,
                            .defaults = {.target_lossy_ratio = 3.5f},
                            .plan = Plan<MnnRevision::kDesign>};
const EngineRule kMnn = {.name = "mnn",
                         .text = "mnn",
                         .schedule = kSchedule,
                         .ratio_name = kRatioName,
                         .ratio_remark = kRatioRemark,
                         .plan = Plan<MnnRevision::kFinal>};
const EngineRule kMnnR6 = {
    .name = "mnn-r6",
    .text = "mnn-r6",
    .schedule = kSchedule,
    .ratio_name = kRatioName,
    .ratio_remark = kRatioRemark,
    .warning =
        "mnn-r6 also moved V rows to wrong places when it compacted under flash attention; "
        "the figures here are of its plans, with V where it belongs",
    .plan = Plan<MnnRevision::kR6>};

const EngineRule* FindEngine(std::string_view name, bool at_intervals) {
  for (const EngineRule* rule : {&kDesign, &kMnn, &kMnnR6}) {
    if (rule->name == name) return rule;
  }
  return at_intervals ? &kIntervals : nullptr;
}

ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress) {
  if (trace.block_scores && (request.engine == nullptr || request.engine == &kIntervals)) {
    throw Error(Finding::kUsage,
                "a stream of block scores replays with --engine mnn, mnn-r6 or design")
        .File(trace.path);
  }
  ReplayResult result = eviction::Replay(snapshot, trace, request, pool, progress);
  for (ReplayRun& run : result.runs) run.nothing_because = WhyNothing(result, run);
  return result;
}

}  // namespace kv::mnn::h2o
