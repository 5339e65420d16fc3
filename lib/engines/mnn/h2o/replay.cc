// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/h2o/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/cast.h"
#include "lib/engines/mnn/h2o/replay_notes.h"
#include "lib/engines/mnn/h2o/replay_prediction.h"

namespace kv::mnn::h2o {
namespace {

Error Refused(const AttentionTrace& trace, std::string message) {
  return std::move(Error(Finding::kTraceMismatch, std::move(message)).File(trace.path));
}

uint64_t RowBytes(const LayerKv& layer) {
  return layer.k.row_bytes() + (layer.v ? layer.v->row_bytes() : 0);
}

// One replay from the inputs to its runs.
class Replayer {
 public:
  Replayer(const Snapshot& snapshot, const AttentionTrace& trace, const ReplayRequest& request,
           ThreadPool& pool, Progress* progress)
      : snapshot_(snapshot),
        values_(WithoutHadamard(snapshot, pool)),
        trace_(trace),
        request_(request),
        pool_(pool),
        progress_(progress) {}

  ReplayResult Run() {
    result_.engine = request_.engine;
    result_.clock = request_.engine == Engine::kExact ? request_.clock : Clock::kMnn;
    result_.config = eviction::Sanitised(request_.config);
    result_.paper = request_.paper;
    result_.weights = request_.weights.value_or(
        request_.engine == Engine::kExact ? WeightRule::kSoftmax : WeightRule::kFlashLocal);
    result_.prompt = PromptTokens(trace_, request_);
    result_.end = trace_.end_position();
    if (trace_.block_scores) {
      try {
        RunStream();
      } catch (Error& error) {
        throw error.File(trace_.path);
      }
      if (auto ends = WhereTargetsEnd(result_)) result_.warnings.push_back(std::move(*ends));
      return std::move(result_);
    }
    CollectLayers();
    AddTraceRemarks();
    if (on_budget()) {
      ScheduleBudgets();
    } else {
      for (const eviction::BlockConfig& config : Configs()) ScheduleTarget(config);
    }
    for (ReplayRun& run : result_.runs) KeepUntraced(run);
    PlanLayers();
    for (ReplayRun& run : result_.runs) {
      CountBytes(run);
      run.same_as = SamePolicy(run);
    }
    if (on_budget()) SortByRatio();
    if (request_.measure_quality) Measure();
    result_.notes = NotesOf(result_, trace_);
    if (request_.re_rotation) {
      result_.notes.push_back(
          "streaming: keys are turned to their positions within the cache, as published");
    }
    if (auto ends = WhereTargetsEnd(result_)) result_.warnings.push_back(std::move(*ends));
    return std::move(result_);
  }

 private:
  std::vector<eviction::BlockConfig> Configs() const {
    if (request_.targets.empty()) return {eviction::Sanitised(request_.config)};
    std::vector<eviction::BlockConfig> configs;
    for (const double ratio : request_.targets) {
      const auto target = static_cast<float>(ratio);
      eviction::BlockConfig config = request_.config;
      config.target_lossy_ratio = target;
      if (config.target_mode == eviction::TargetMode::kStatic)
        config.target_keep_ratio = 1.0f / target;
      configs.push_back(eviction::Sanitised(config));
    }
    return configs;
  }

  bool on_budget() const {
    return request_.engine == Engine::kExact && request_.clock == Clock::kPaper;
  }

  eviction::PolicyOptions OptionsFor(const ReplayRun& run) const {
    return {run.config,           request_.paper, result_.weights,
            request_.granularity, request_.seed,  run.budget.has_value()};
  }

  void CollectLayers() {
    for (const LayerKv& layer : values_.layers) {
      const TraceLayer* rows = trace_.Find(layer.index);
      if (rows == nullptr) {
        result_.missing_layers.push_back(layer.index);
      } else {
        result_.traced_layers.push_back(layer.index);
        attentions_.emplace_back(trace_, *rows, layer);
      }
    }
  }

  void AddTraceRemarks() {
    result_.undefined = CheckTraceRows(trace_, pool_);
    result_.undefined_gradients = CheckGradients(trace_, pool_);
    for (const std::string& undefined :
         {Remark(result_.undefined), Remark(result_.undefined_gradients, "rows of gradients")}) {
      if (!undefined.empty()) result_.warnings.push_back(undefined);
    }
    if (trace_.q_start == 0) return;
    result_.warnings.push_back(
        fmt::format("the trace has no queries of the prompt's positions 0 to {}: rules that weigh "
                    "the prompt by "
                    "its own attention (h2o, snapkv, pyramid) see only what comes later",
                    std::min(trace_.q_start, result_.prompt) - 1));
  }

  // Layer numbers of the engine are positions among the layers of the snapshot.
  uint32_t PlaceOf(uint32_t layer) const {
    for (size_t i = 0; i < snapshot_.layers.size(); ++i) {
      if (snapshot_.layers[i].index == layer) return static_cast<uint32_t>(i);
    }
    return 0;
  }
  uint32_t layer_count() const { return static_cast<uint32_t>(snapshot_.layers.size()); }

  eviction::LayerPlace PlaceIn(const eviction::LayerRange& range, uint32_t place) const {
    if (!range.Contains(place)) return {false, 0, 1};
    return {true, place - range.first, range.last - range.first + 1};
  }

  ReplayRun RunOf(std::string policy, const eviction::BlockConfig& config,
                  std::vector<eviction::LayerSchedule> schedules) const {
    ReplayRun run;
    run.policy = std::move(policy);
    run.config = config;
    run.end = result_.end;
    run.schedules = std::move(schedules);
    for (size_t i = 0; i < run.schedules.size(); ++i) {
      run.schedules[i].layer = snapshot_.layers[i].index;
    }
    return run;
  }

  // The whole cache is the same for every target.
  bool IsThere(std::string_view policy) const {
    return policy == "full" &&
           std::any_of(result_.runs.begin(), result_.runs.end(),
                       [](const ReplayRun& run) { return run.policy == "full"; });
  }

  // A run held to schedules that do not depend on its policy.
  void AddRun(const std::string& name, const eviction::BlockConfig& config,
              const std::vector<eviction::LayerSchedule>& common) {
    if (IsThere(name)) return;
    const eviction::LayerRange range = eviction::EvictedLayers(config, layer_count());
    ReplayRun run = RunOf(name, config, common);
    const eviction::PolicyOptions options = OptionsFor(run);
    for (uint32_t i = 0; i < layer_count(); ++i) {
      run.schedules[i] = eviction::CommonSchedule(*eviction::FindPolicy(name), options,
                                                  PlaceIn(range, i), run.schedules[i]);
    }
    result_.runs.push_back(std::move(run));
  }

  // Layers without rows have no plan, so that their tokens count as kept.
  void KeepUntraced(ReplayRun& run) const {
    for (eviction::LayerSchedule& schedule : run.schedules) {
      if (trace_.Find(schedule.layer) != nullptr) continue;
      schedule.evictions.clear();
      schedule.triggers = schedule.floor_dominated = 0;
    }
  }

  void ScheduleTarget(const eviction::BlockConfig& config) {
    if (request_.engine != Engine::kExact) {
      PlanMnn(config);
      return;
    }
    std::vector<eviction::LayerSchedule> schedules;
    for (uint32_t i = 0; i < layer_count(); ++i) {
      schedules.push_back(
          eviction::ExactSchedule(config, i, layer_count(), result_.prompt, result_.end));
    }
    for (const std::string& name : request_.policies) AddRun(name, config, schedules);
  }

  void ScheduleBudgets() {
    std::vector<eviction::KeepBudget> budgets = request_.budgets;
    for (const double target : request_.targets)
      budgets.push_back({std::nullopt, 1 / target, true});
    if (budgets.empty()) {
      const eviction::BlockConfig defaults;
      budgets.push_back({std::nullopt, 1 / static_cast<double>(defaults.target_lossy_ratio), true});
    }
    uint64_t least = result_.end;
    for (const eviction::KeepBudget& budget : budgets)
      least = std::min(least, budget.At(result_.end));
    result_.config =
        eviction::FollowTrace(request_.config, request_.chosen, least, result_.followed);
    const eviction::BudgetSteps steps{
        eviction::FirstEviction(result_.config, trace_.q_start, result_.prompt), result_.end};
    const eviction::LayerRange range = eviction::EvictedLayers(result_.config, layer_count());
    for (const eviction::KeepBudget& budget : budgets) {
      eviction::BlockConfig config = result_.config;
      config.target_mode = eviction::TargetMode::kAdaptive;
      config.target_lossy_ratio = budget.tokens ? NAN : static_cast<float>(1 / budget.share);
      for (const std::string& name : request_.policies) {
        if (IsThere(name)) continue;
        eviction::RequireFloor(name, config, request_.paper, budget, result_.end);
        ReplayRun run = RunOf(name, config, {});
        run.budget = budget;
        const eviction::PolicyOptions options = OptionsFor(run);
        for (uint32_t i = 0; i < layer_count(); ++i) {
          run.schedules.push_back(eviction::BudgetSchedule(*eviction::FindPolicy(name), options,
                                                           budget, steps, PlaceIn(range, i)));
          run.schedules.back().layer = snapshot_.layers[i].index;
        }
        result_.runs.push_back(std::move(run));
      }
    }
  }

  Rope RotationOf(const LayerAttention& attention) const {
    Rope rope = request_.re_rotation->Of(ModelNumber(attention.kv()));
    RequireFit(rope, attention.head_dim());
    RequireOneSetOfFrequencies(rope, result_.end, "--re-rotate");
    return rope;
  }

  // The plans of all runs, layer by layer; those of the engine itself are there already.
  void PlanLayers() {
    std::vector<eviction::PolicyOptions> options;
    for (const ReplayRun& run : result_.runs) options.push_back(OptionsFor(run));
    for (const LayerAttention& attention : attentions_) {
      std::vector<eviction::PlanJob> jobs;
      std::vector<ReplayRun*> runs;
      for (size_t i = 0; i < result_.runs.size(); ++i) {
        ReplayRun& run = result_.runs[i];
        if (run.mnn) continue;
        jobs.push_back({eviction::FindPolicy(run.policy), &options[i],
                        &run.schedules[PlaceOf(attention.layer())]});
        runs.push_back(&run);
      }
      std::vector<eviction::LayerPlan> plans =
          eviction::PlanLayer(attention, result_.prompt, jobs, pool_);
      for (size_t i = 0; i < runs.size(); ++i) {
        if (request_.re_rotation && runs[i]->policy == "streaming") {
          plans[i].turned_by = RotationOf(attention);
        }
        runs[i]->plans.push_back(std::move(plans[i]));
      }
    }
  }

  void SortByRatio() {
    std::stable_sort(result_.runs.begin(), result_.runs.end(),
                     [](const ReplayRun& a, const ReplayRun& b) { return a.ratio() < b.ratio(); });
  }

  MnnRevision revision_of_engine() const {
    if (request_.engine == Engine::kDesign) return MnnRevision::kDesign;
    return request_.engine == Engine::kMnnR6 ? MnnRevision::kR6 : MnnRevision::kFinal;
  }

  MnnGeometry GeometryOfModel() const {
    const KvTensor& k = snapshot_.layers.front().k;
    // Block types have no whole bytes per element; the engine knows fp16 and fp32.
    const uint32_t bytes = IsBlockQuantised(k.dtype) ? 2 : Info(k.dtype).block_bytes;
    return {layer_count(), trace_.query_heads, k.heads, k.head_dim, bytes};
  }

  void PlanMnn(const eviction::BlockConfig& config) {
    const MnnRevision revision = revision_of_engine();
    if (revision == MnnRevision::kR6 && result_.runs.empty()) {
      result_.warnings.push_back(
          "mnn-r6 also moved V rows to wrong places when it compacted under flash attention; the "
          "figures here are of its plans, with V where it belongs");
    }
    if (request_.granularity != eviction::Granularity::kLayer) {
      throw Error(Finding::kUsage, fmt::format("--granularity kv-head: engine {} decides per layer",
                                               Name(request_.engine)));
    }
    const eviction::LayerRange range = eviction::EvictedLayers(config, layer_count());
    for (uint32_t i = range.first; revision == MnnRevision::kR6 && i <= range.last; ++i) {
      if (trace_.Find(snapshot_.layers[i].index) != nullptr) continue;
      throw Refused(trace_, fmt::format("layer {} has no rows: mnn-r6 folds all layers into one "
                                        "score vector and needs every one of the range",
                                        snapshot_.layers[i].index));
    }
    // The engine counts layers by their place, whatever the file calls them.
    const auto source = TraceBlockSums(
        attentions_, Places(), static_cast<uint64_t>(config.block_tokens), result_.weights, pool_);
    MnnReplay replay =
        ReplayMnn(config, GeometryOfModel(), revision, result_.prompt, result_.end, *source);
    const std::vector<eviction::LayerSchedule> schedules = replay.schedules;
    for (const std::string& name : request_.policies) {
      if (name != "block") {
        AddRun(name, config, schedules);
        continue;
      }
      ReplayRun run = RunOf(name, config, schedules);
      for (const LayerAttention& attention : attentions_) {
        run.plans.push_back(replay.plans[PlaceOf(attention.layer())]);
        run.plans.back().layer = attention.layer();
      }
      run.mnn = replay;
      result_.runs.push_back(std::move(run));
    }
  }

  std::vector<uint32_t> Places() const {
    std::vector<uint32_t> places;
    for (const LayerAttention& attention : attentions_) {
      places.push_back(PlaceOf(attention.layer()));
    }
    return places;
  }

  void RunStream() {
    const BlockScoreStream& stream = *trace_.block_scores;
    if (request_.engine == Engine::kExact) {
      throw Error(Finding::kUsage,
                  "a stream of block scores replays with --engine mnn, mnn-r6 or design");
    }
    if (request_.policies != std::vector<std::string>{"block"}) {
      throw Error(Finding::kUsage,
                  "--policy: a stream of block scores holds no attention rows to choose by");
    }
    if (stream.layers != layer_count()) {
      throw Refused(trace_, fmt::format("the stream has {} layers, the snapshot {}", stream.layers,
                                        layer_count()));
    }
    const MnnRevision revision = revision_of_engine();
    for (const eviction::BlockConfig& config : Configs()) {
      const auto source = StreamBlockSums(stream.open(), stream.layers, result_.prompt);
      MnnReplay replay =
          ReplayMnn(config, GeometryOfModel(), revision, result_.prompt, UINT32_MAX, *source);
      result_.end = result_.prompt + replay.allocated_tokens.size();
      ReplayRun run = RunOf("block", config, replay.schedules);
      run.plans = replay.plans;
      for (size_t i = 0; i < run.plans.size(); ++i) run.plans[i].layer = snapshot_.layers[i].index;
      run.mnn = std::move(replay);
      CountBytes(run);
      result_.runs.push_back(std::move(run));
    }
    for (const LayerKv& layer : snapshot_.layers) result_.traced_layers.push_back(layer.index);
  }

  void CountBytes(ReplayRun& run) const {
    std::vector<eviction::LengthWalk> walks(run.schedules.begin(), run.schedules.end());
    for (uint64_t token = result_.prompt; token < result_.end; ++token) {
      StepBytes step{token, 0, 0, 0};
      for (size_t i = 0; i < snapshot_.layers.size(); ++i) {
        const uint64_t row = RowBytes(snapshot_.layers[i]);
        const uint64_t seen = TokensSeen(trace_, snapshot_.layers[i].index, token);
        step.full += seen * row;
        step.kept += std::min(walks[i].At(token), seen) * row;
      }
      step.allocated = step.kept;
      if (run.mnn) {
        const uint64_t row = RowBytes(snapshot_.layers.front());
        step.allocated = run.mnn->allocated_tokens[token - result_.prompt] * row;
      }
      run.steps.push_back(step);
    }
  }

  void WarnOnce(const std::string& text) {
    std::vector<std::string>& all = result_.warnings;
    if (std::count(all.begin(), all.end(), text) == 0) all.push_back(text);
  }

  void Measure() {
    Prediction prediction(snapshot_, trace_, request_);
    result_.kl_method = prediction.method();
    result_.measured =
        eviction::ChooseRows(result_.prompt, result_.end, request_.quality_rows, request_.seed);
    std::vector<AttentionSamples> pooled(result_.runs.size(),
                                         AttentionSamples(result_.measured.population));
    if (progress_ != nullptr) progress_->Begin(snapshot_.kv_bytes());
    for (size_t i = 0; i < attentions_.size(); ++i) {
      std::vector<const eviction::LayerPlan*> plans;
      for (const ReplayRun& run : result_.runs) plans.push_back(&run.plans[i]);
      std::vector<eviction::LayerQuality> of_layer = eviction::MeasureLayer(
          attentions_[i], plans, result_.measured, pooled, pool_, prediction.Begin(attentions_[i]));
      for (size_t r = 0; r < of_layer.size(); ++r) {
        prediction.Take(r, of_layer[r]);
        result_.runs[r].layers.push_back(std::move(of_layer[r]));
      }
      if (progress_ != nullptr) {
        progress_->Advance(RowBytes(attentions_[i].kv()) * attentions_[i].kv().k.tokens());
      }
    }
    for (size_t r = 0; r < pooled.size(); ++r) {
      result_.runs[r].quality = pooled[r].Summarise();
      result_.runs[r].evicting = pooled[r].SummariseEvicting();
      if (auto why = prediction.Finish(r, result_.measured, result_.runs[r])) WarnOnce(*why);
    }
  }

  const Snapshot& snapshot_;  // as stored: what bytes are counted by
  const Snapshot values_;     // as the model computed it: what queries are asked of
  const AttentionTrace& trace_;
  const ReplayRequest& request_;
  ThreadPool& pool_;
  Progress* progress_;
  std::vector<LayerAttention> attentions_;
  ReplayResult result_;
};

}  // namespace

ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress) {
  return Replayer(snapshot, trace, request, pool, progress).Run();
}

}  // namespace kv::mnn::h2o
