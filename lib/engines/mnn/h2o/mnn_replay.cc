// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Replays the engine's eviction over a trace or a stream of block scores, call by call, and turns
// its plans into those of a study.
#include "lib/engines/mnn/h2o/mnn_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lib/core/base/error.h"
#include "lib/study/eviction/replay.h"

namespace kv::mnn::h2o {
namespace {

constexpr uint64_t kWorthThreads = uint64_t{4} << 20;  // least multiplications for several threads

class FromTrace : public BlockSumSource {
 public:
  FromTrace(std::span<const LayerAttention> layers, std::span<const uint32_t> places,
            uint64_t block_tokens, WeightRule weights, ThreadPool& pool)
      : block_tokens_(block_tokens), weights_(weights), pool_(pool) {
    KV_ASSERT(layers.size() == places.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      Layer layer{&layers[i], places[i], {}};
      for (uint32_t h = 0; h < layers[i].kv_heads(); ++h) layer.keys.emplace_back(layers[i], h);
      layers_.push_back(std::move(layer));
    }
  }

  std::optional<std::vector<float>> Sums(const CallStart& start, uint64_t blocks,
                                         uint64_t position) override {
    if (!start.in_range) return std::vector<float>();
    std::vector<float> sums(blocks);
    for (Layer& layer : layers_) {
      if (layer.place != start.layer) continue;
      for (KeptKeys& keys : layer.keys) {
        if (keys.size() == 0) keys.AppendUpTo(position);  // appends the prompt
        if (start.plan_applied) keys.Compact(start.applied);
        keys.AppendUpTo(position + 1);
        KV_ASSERT(keys.size() == start.length);
      }
      AddSums(layer, position, sums);
    }
    return sums;
  }

  bool knows(uint32_t layer) const override {
    return std::any_of(layers_.begin(), layers_.end(),
                       [&](const Layer& known) { return known.place == layer; });
  }

 private:
  struct Layer {
    const LayerAttention* attention;
    uint32_t place;
    std::vector<KeptKeys> keys;
  };

  // Computes the heads' weights in parallel and sums them in the order of one engine thread: head
  // by head.
  void AddSums(const Layer& layer, uint64_t position, std::vector<float>& sums) {
    const uint32_t heads = layer.attention->query_heads(), group = layer.attention->group();
    const size_t n = layer.keys.front().size();
    rows_.resize(heads * n);
    const auto add_head = [&](uint64_t head) {
      RowScratch scratch;
      float* row = &rows_[head * n];
      const size_t seen = RowLogits(*layer.attention, static_cast<uint32_t>(head), position,
                                    layer.keys[head / group], scratch, row);
      KV_ASSERT(seen == n);
      WeighRow(row, n, weights_);
    };
    // For a small model's row, waking threads at every step costs more than the row.
    if (heads * n * layer.attention->head_dim() < kWorthThreads) {
      for (uint32_t head = 0; head < heads; ++head) add_head(head);
    } else {
      pool_.ParallelFor(heads, add_head);
    }
    for (uint32_t head = 0; head < heads; ++head) {
      AddInOrder(&rows_[head * n], n, block_tokens_, sums.data());
    }
  }

  uint64_t block_tokens_;
  WeightRule weights_;
  ThreadPool& pool_;
  std::vector<Layer> layers_;
  std::vector<float> rows_;
};

class FromStream : public BlockSumSource {
 public:
  FromStream(std::unique_ptr<BlockScoreReader> reader, uint32_t layers, uint64_t prompt)
      : reader_(std::move(reader)), layers_(layers), prompt_(prompt), next_(reader_->Next()) {}

  std::optional<std::vector<float>> Sums(const CallStart& start, uint64_t blocks,
                                         uint64_t position) override {
    if (!next_ && start.layer == 0) return std::nullopt;
    const uint64_t step = position - prompt_ + 1;
    const bool is_this = next_ && next_->step == step && next_->layer == start.layer;
    if (!is_this) {
      if (next_ && (next_->step < step || (next_->step == step && next_->layer < start.layer) ||
                    next_->layer >= layers_)) {
        throw Differs(fmt::format("step {} layer {} comes when step {} layer {} is due",
                                  next_->step, next_->layer, step, start.layer));
      }
      if (!start.in_range) return std::vector<float>();
      if (!next_) {
        throw Error(Finding::kTraceMismatch, "the stream ends inside step {}: layer {} is missing",
                    step, start.layer);
      }
      throw Differs(fmt::format("step {} layer {} is missing: the parameters evict there", step,
                                start.layer));
    }
    if (next_->block_sums.size() != blocks) {
      throw Differs(fmt::format("{} block sums, but the replayed cache of {} tokens has {} blocks",
                                next_->block_sums.size(), start.length, blocks))
          .Hint("replay the stream with the parameters that it was recorded with");
    }
    std::vector<float> sums = std::move(next_->block_sums);
    next_ = reader_->Next();
    return sums;
  }

  bool knows(uint32_t /*layer*/) const override { return true; }

 private:
  Error Differs(std::string message) const {
    return Error(Finding::kTraceMismatch, std::move(message))
        .In(fmt::format("line {}", next_->line));
  }

  std::unique_ptr<BlockScoreReader> reader_;
  uint32_t layers_;
  uint64_t prompt_;
  std::optional<BlockScoreCall> next_;
};

}  // namespace

std::unique_ptr<BlockSumSource> TraceBlockSums(std::span<const LayerAttention> layers,
                                               std::span<const uint32_t> places,
                                               uint64_t block_tokens, WeightRule weights,
                                               ThreadPool& pool) {
  return std::make_unique<FromTrace>(layers, places, block_tokens, weights, pool);
}

std::unique_ptr<BlockSumSource> StreamBlockSums(std::unique_ptr<BlockScoreReader> reader,
                                                uint32_t layers, uint64_t prompt) {
  return std::make_unique<FromStream>(std::move(reader), layers, prompt);
}

MnnReplay ReplayMnn(const eviction::BlockConfig& config, const MnnGeometry& geometry,
                    MnnRevision revision, uint64_t prompt, uint64_t end, BlockSumSource& source) {
  MnnEngine engine(config, geometry, revision, prompt);
  MnnReplay replay;
  const eviction::LayerRange range = eviction::EvictedLayers(engine.config(), geometry.layers);
  std::vector<KeepPlan> held(geometry.layers);
  for (uint32_t l = 0; l < geometry.layers; ++l) {
    replay.schedules.push_back({l, range.Contains(l), {}, 0, 0});
    replay.plans.emplace_back().layer = l;
    Append(held[l], {0, static_cast<uint32_t>(prompt)});
  }
  for (uint64_t token = prompt; token < end; ++token) {
    for (uint32_t l = 0; l < geometry.layers; ++l) {
      MnnCall call;
      call.token = token;
      call.start = engine.Begin();
      if (call.start.plan_applied) held[l] = Select(held[l], call.start.applied);
      Append(held[l], {static_cast<uint32_t>(token), 1});
      const auto sums = source.Sums(call.start, engine.blocks(call.start.length), token);
      if (!sums) return replay;  // the stream ended, so this step did not take place
      call.end = engine.Finish(*sums);
      call.end.ema_scores.clear();
      replay.plans_dropped += call.start.plan_dropped;
      eviction::LayerSchedule& schedule = replay.schedules[l];
      const eviction::BlockChoice& decision = call.end.decision;
      const bool is_known = source.knows(l);
      schedule.triggers += call.end.triggered && is_known;
      replay.floor_decisions += call.end.triggered && decision.budget.floor_dominates;
      schedule.floor_dominated += call.end.triggered && is_known &&
                                  decision.budget.floor_dominates &&
                                  revision == MnnRevision::kFinal;
      if (!decision.plan.empty() && is_known) {
        const eviction::Eviction eviction{token, call.start.length, decision.kept};
        call.planned = Select(held[l], decision.plan);
        schedule.evictions.push_back(eviction);
        replay.plans[l].Keep(eviction, {&call.planned, 1});
      }
      call.metrics = engine.metrics();
      if (call.end.triggered || call.start.plan_applied || call.start.plan_dropped) {
        replay.calls.push_back(std::move(call));
      }
    }
    uint64_t allocated = 0;
    replay.capacities.resize(geometry.layers);
    for (uint32_t l = 0; l < geometry.layers; ++l) {
      replay.capacities[l] = std::max(engine.capacity(l), source.knows(l) ? 0 : token + 1);
      allocated += replay.capacities[l];
    }
    replay.allocated_tokens.push_back(allocated);
    replay.metrics = engine.metrics();
    replay.reported_ratio = replay.metrics.lossy_ratio;
    replay.meta_previous = engine.meta_previous();
  }
  return replay;
}

namespace {

using eviction::EngineCase;
using eviction::EngineRule;
using eviction::EngineRun;

// Returns the schedule of the published design: its clock counts tokens, separately in each layer,
// and its target is a share of the cache at each trigger. Token `prompt` is the first decode step.
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
    const eviction::BlockBudget budget = eviction::ComputeBlockBudget(config, length);
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

MnnGeometry ToMnnGeometry(const EngineCase& of) {
  const KvTensor& k = of.snapshot.layers.front().k;
  // Block types have no whole bytes per element; fp16 replaces them, because the engine has only
  // fp16 and fp32.
  const uint32_t bytes = IsBlockQuantised(k.dtype) ? 2 : Info(k.dtype).block_bytes;
  const auto layers = static_cast<uint32_t>(of.snapshot.layers.size());
  return {layers, of.trace.query_heads, k.heads, k.head_dim, bytes};
}

MnnReplay ReplayStream(const EngineCase& of, MnnRevision revision) {
  const BlockScoreStream& stream = *of.trace.block_scores;
  try {
    const auto source = StreamBlockSums(stream.open(), stream.layers, of.prompt);
    return ReplayMnn(of.config, ToMnnGeometry(of), revision, of.prompt, UINT32_MAX, *source);
  } catch (Error& error) {
    throw error.File(of.trace.path);
  }
}

MnnReplay ReplayRows(const EngineCase& of, MnnRevision revision) {
  const std::vector<LayerKv>& layers = of.snapshot.layers;
  if (of.request.granularity != eviction::Granularity::kLayer) {
    throw Error(Finding::kUsage, "--granularity kv-head: engine {} decides per layer",
                of.request.engine->name);
  }
  const auto range = eviction::EvictedLayers(of.config, static_cast<uint32_t>(layers.size()));
  for (uint32_t i = range.first; revision == MnnRevision::kR6 && i <= range.last; ++i) {
    if (of.trace.Find(layers[i].index) != nullptr) continue;
    throw Error(Finding::kTraceMismatch,
                "layer {} has no rows: mnn-r6 folds all layers into one score vector "
                "and needs every one of the range",
                layers[i].index)
        .File(of.trace.path);
  }
  // The engine counts layers by their place, whatever their numbers in the file.
  std::vector<uint32_t> places;
  for (const LayerAttention& attention : of.attentions) {
    const auto found = std::ranges::find(layers, attention.layer(), &LayerKv::index);
    places.push_back(static_cast<uint32_t>(found - layers.begin()));
  }
  const auto block = static_cast<uint64_t>(of.config.block_tokens);
  const auto source = TraceBlockSums(of.attentions, places, block, of.weights, of.pool);
  return ReplayMnn(of.config, ToMnnGeometry(of), revision, of.prompt, of.end, *source);
}

template <MnnRevision revision>
std::shared_ptr<const EngineRun> Plan(const EngineCase& of) {
  const auto replay = of.trace.block_scores ? ReplayStream : ReplayRows;
  return std::make_shared<MnnReplay>(replay(of, revision));
}

constexpr std::string_view kSchedule = "mnn", kRatioName = "h2o_lossy_ratio";
constexpr std::string_view kRatioRemark =
    "h2o_lossy_ratio is the ratio of the engine's last plan alone, relative to the length of that "
    "plan's layer when it was made. The true ratio counts every layer at the end.";

// Returns why nothing was evicted, naming the parameter; "" if something was.
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
    return fmt::format("{} compresses only the prompt, and {} holds all its {} tokens", run.policy,
                       run.target_text(), result.prompt);
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

namespace {

// Adds the figures of one run to those of the others.
void Add(const advise::Outcome& run, advise::Outcome& all) {
  const auto append = [](const std::vector<double>& from, std::vector<double>& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(run.loss, all.loss);
  append(run.standard_error, all.standard_error);
  append(run.kept_share, all.kept_share);
  append(run.held_share, all.held_share);
}

// Number of settings replayed together, because they share attention that all of them change.
constexpr size_t kTriedTogether = 4;

AdvisedSettings ToSettings(const advise::Candidate& candidate, uint64_t shortest_prompt) {
  AdvisedSettings settings;
  settings.candidate = &candidate;
  settings.config = candidate.config;
  settings.config.trigger_min_tokens = static_cast<int64_t>(shortest_prompt);
  return settings;
}

void Try(const advise::Runs& runs, const advise::AdviceRequest& request,
         std::span<AdvisedSettings> together, ThreadPool& pool) {
  for (const auto& run : runs) {
    std::vector<advise::PlansOfRun> plans;
    for (AdvisedSettings& settings : together) {
      ReplayRequest replay;
      replay.engine = &kMnn;
      replay.config = settings.config;
      replay.prompt_tokens = run->prompt();
      replay.measure_quality = false;
      const ReplayResult result = eviction::Replay(run->snapshot(), run->trace(), replay, pool);
      plans.push_back(result.runs.front().plans);
      if (!settings.compounds) settings.compounds = eviction::WhereTargetsEnd(result);
    }
    const auto outcomes = advise::MeasurePlans(*run, plans, request.measure, pool);
    for (size_t i = 0; i < together.size(); ++i) Add(outcomes[i], together[i].outcome);
  }
}

}  // namespace

std::optional<AdvisedSettings> AdviseSettings(const advise::Runs& runs,
                                              const advise::AdviceRequest& request,
                                              const advise::Advice& advice, ThreadPool& pool) {
  uint64_t shortest_prompt = UINT64_MAX;
  for (const auto& run : runs) shortest_prompt = std::min(shortest_prompt, run->prompt());
  // Points by descending share: with a limit on the loss the last ones save most.
  std::vector<const advise::Point*> order;
  for (const advise::Point& point : advice.found.uniform) order.push_back(&point);
  if (request.limits.loss) std::reverse(order.begin(), order.end());
  std::vector<AdvisedSettings> all;
  for (const advise::Point* point : order) {
    const advise::Candidate& candidate = advice.candidates[*point->uniform];
    if (eviction::FindPolicy(candidate.policy)->tuned_by != eviction::Tuning::kBlocks ||
        candidate.budget.tokens)
      continue;
    all.push_back(ToSettings(candidate, shortest_prompt));
  }
  for (size_t begin = 0; begin < all.size(); begin += kTriedTogether) {
    const auto together =
        std::span(all).subspan(begin, std::min(kTriedTogether, all.size() - begin));
    Try(runs, request, together, pool);
    for (AdvisedSettings& settings : together) {
      if (advise::Meets(settings.outcome, request.limits)) return std::move(settings);
    }
  }
  return std::nullopt;
}

}  // namespace kv::mnn::h2o
