// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Replays policies over a trace: schedules from budgets or an engine, plans layer by layer, and the
// quality and prediction of each run.
#include "lib/study/eviction/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/core/base/error.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/cast.h"

namespace kv::eviction {
namespace {

// Predicts the loss in nats of all runs of a replay while their layers are measured one by one.
class Prediction {
 public:
  // Throws kTraceMismatch for sensitivities of layers that the snapshot lacks.
  Prediction(const Snapshot& snapshot, const AttentionTrace& trace, const ReplayRequest& request)
      : trace_(trace), request_(request) {
    if (!request.sensitivity) {
      if (trace.gradients) method_ = KlMethod::kGradients;
      return;
    }
    method_ = KlMethod::kSensitivity;
    for (const auto& [layer, weight] : *request.sensitivity) {
      if (snapshot.Find(layer) != nullptr) continue;
      throw std::move(Error(Finding::kTraceMismatch,
                            "the sensitivity of layer {} is given, but the snapshot has no such "
                            "layer: it is another model's",
                            layer)
                          .File(trace.path));
    }
  }

  std::optional<KlMethod> method() const { return method_; }
  // Begins a layer. Returns true if its changes of log p must be measured.
  bool Begin(const LayerAttention& attention) {
    if (!method_) return false;
    const bool has_changes = method_ == KlMethod::kGradients && HasChanges(attention);
    const bool has_weight = method_ == KlMethod::kSensitivity &&
                            request_.sensitivity->count(attention.layer()) != 0 && attention.kv().v;
    if (has_changes || has_weight) counted_.insert(attention.layer());
    return has_changes;
  }
  // Adds the changes that one run makes in this layer and frees them: kept for each head, layer and
  // run they would fill memory.
  void Take(size_t run, LayerQuality& quality) {
    if (changes_.size() <= run) changes_.resize(run + 1);
    for (const LogPChange& of_head : quality.log_p_changes) changes_[run].Add(of_head);
    quality.log_p_changes.clear();
  }
  // Stores the prediction of a run if all its layers are measured. Returns the reason if there is
  // none.
  std::optional<std::string> Finish(size_t index, const MeasuredRows& measured,
                                    ReplayRun& run) const {
    if (!method_) return std::nullopt;
    if (auto why = WhyNot(run)) return why;
    if (method_ == KlMethod::kSensitivity) {
      run.predicted_kl =
          PredictKl(run.layers, *request_.sensitivity, measured.population, measured.positions);
    } else {
      const GradientRows& rows = *trace_.gradients;
      const uint64_t begin = std::max(measured.first, rows.begin);
      const uint64_t end = std::min(measured.first + measured.population, rows.end());
      run.predicted_kl =
          PredictKl(changes_.at(index), end - std::min(begin, end), measured.positions);
    }
    if (run.predicted_kl) return std::nullopt;
    return method_ == KlMethod::kGradients
               ? "no predicted KL: no measured row has gradients in all layers"
               : "no predicted KL: no row is measured in all layers";
  }

 private:
  std::optional<std::string> WhyNot(const ReplayRun& run) const {
    std::vector<uint32_t> missing;
    for (const LayerSchedule& schedule : run.schedules) {
      const bool loses = schedule.evictions_in_effect(run.end) > 0;
      if (loses && counted_.count(schedule.layer) == 0) missing.push_back(schedule.layer);
    }
    if (missing.empty()) return std::nullopt;
    constexpr size_t kMostNamed = 8;
    const size_t all = missing.size();
    missing.resize(std::min(all, kMostNamed));
    return fmt::format(
        "no predicted KL: {} evicting {} {}: {}{}", all, all == 1 ? "layer has" : "layers have",
        method_ == KlMethod::kGradients ? "no gradients in the trace, or no V"
                                        : "no sensitivity, no rows in the trace, or no V",
        fmt::join(missing, ", "), all > kMostNamed ? " ..." : "");
  }

  const AttentionTrace& trace_;
  const ReplayRequest& request_;
  std::optional<KlMethod> method_;
  std::set<uint32_t> counted_;       // layers whose losses count
  std::vector<LogPChange> changes_;  // by run: sum over the layers so far
};

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
    result_.config = Sanitised(request_.config);
    result_.paper = request_.paper;
    result_.weights =
        request_.weights.value_or(on_budget() ? WeightRule::kSoftmax : request_.engine->weights);
    result_.prompt = PromptTokens(trace_, request_);
    result_.end = trace_.end_position();
    if (is_stream()) {
      RequireStream();
      for (const LayerKv& layer : snapshot_.layers) result_.traced_layers.push_back(layer.index);
    } else {
      CollectLayers();
      AddTraceRemarks();
    }
    if (on_budget()) {
      ScheduleBudgets();
    } else {
      for (const BlockConfig& config : Configs()) ScheduleByEngine(config);
    }
    if (!is_stream()) PlanLayers();
    for (ReplayRun& run : result_.runs) CountBytes(run);
    if (!is_stream()) Describe();
    if (auto ends = WhereTargetsEnd(result_)) result_.warnings.push_back(std::move(*ends));
    return std::move(result_);
  }

 private:
  std::vector<BlockConfig> Configs() const {
    if (request_.targets.empty()) return {Sanitised(request_.config)};
    std::vector<BlockConfig> configs;
    for (const double ratio : request_.targets) {
      const auto target = static_cast<float>(ratio);
      BlockConfig config = request_.config;
      config.target_lossy_ratio = target;
      if (config.target_mode == TargetMode::kStatic) config.target_keep_ratio = 1.0f / target;
      configs.push_back(Sanitised(config));
    }
    return configs;
  }

  bool on_budget() const { return request_.engine == nullptr; }
  // Returns true if the trace has recorded scores of blocks, but no rows to choose tokens by.
  bool is_stream() const { return trace_.block_scores.has_value(); }

  void RequireStream() const {
    for (const std::string& policy : request_.policies) {
      if (FindPolicy(policy)->tuned_by == Tuning::kBlocks) continue;
      throw Error(Finding::kUsage,
                  "--policy: a stream of block scores holds no attention rows to choose by")
          .File(trace_.path);
    }
    const uint32_t layers = trace_.block_scores->layers;
    if (layers == layer_count()) return;
    throw Error(Finding::kTraceMismatch, "the stream has {} layers, the snapshot {}", layers,
                layer_count())
        .File(trace_.path);
  }

  // Writes the notes: which policies are equal here, what the replay costs, how to read its
  // figures.
  void Describe() {
    for (ReplayRun& run : result_.runs) run.same_as = SamePolicy(run);
    if (on_budget()) SortByRatio();
    if (request_.measure_quality) Measure();
    result_.notes = WriteNotes(result_, trace_);
    if (request_.re_rotation) {
      result_.notes.push_back(
          "streaming: keys are rotated to their positions within the cache, as published");
    }
  }

  PolicyOptions OptionsFor(const ReplayRun& run) const {
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
    const std::string blocks = RemarkOnBlocks(snapshot_);
    if (!blocks.empty()) result_.warnings.push_back(blocks + ", and ratios are of its bytes");
    if (trace_.q_start == 0) return;
    result_.warnings.push_back(fmt::format(
        "the trace has no queries of the prompt's positions 0 to {}: policies that score the "
        "prompt by its own attention (h2o, snapkv, pyramid) see only later queries",
        std::min(trace_.q_start, result_.prompt) - 1));
  }

  // The engine numbers layers by their place among the layers of the snapshot.
  uint32_t FindLayerPlace(uint32_t layer) const {
    for (size_t i = 0; i < snapshot_.layers.size(); ++i) {
      if (snapshot_.layers[i].index == layer) return static_cast<uint32_t>(i);
    }
    return 0;
  }
  uint32_t layer_count() const { return static_cast<uint32_t>(snapshot_.layers.size()); }

  LayerPlace PlaceIn(const LayerRange& range, uint32_t place) const {
    if (!range.Contains(place)) return {false, 0, 1};
    return {true, place - range.first, range.last - range.first + 1};
  }

  ReplayRun StartRun(std::string policy, const BlockConfig& config,
                     std::vector<LayerSchedule> schedules) const {
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

  // Returns true if a policy that never evicts has a run: one serves all targets.
  bool IsThere(std::string_view policy) const {
    return FindPolicy(policy)->spending == Spending::kNone &&
           std::any_of(result_.runs.begin(), result_.runs.end(),
                       [&](const ReplayRun& run) { return run.policy == policy; });
  }

  // Adds a run with given schedules, which do not depend on its policy.
  void AddRun(const std::string& name, const BlockConfig& config,
              const std::vector<LayerSchedule>& common) {
    if (IsThere(name)) return;
    const LayerRange range = EvictedLayers(config, layer_count());
    ReplayRun run = StartRun(name, config, common);
    const PolicyOptions options = OptionsFor(run);
    for (uint32_t i = 0; i < layer_count(); ++i) {
      run.schedules[i] =
          CommonSchedule(*FindPolicy(name), options, PlaceIn(range, i), run.schedules[i]);
    }
    result_.runs.push_back(std::move(run));
  }

  // Layers without rows get no plan, so their tokens count as kept.
  void KeepUntraced(ReplayRun& run) const {
    for (LayerSchedule& schedule : run.schedules) {
      if (trace_.Find(schedule.layer) == nullptr) schedule.Clear();
    }
  }

  void ScheduleByEngine(const BlockConfig& config) {
    const EngineRule& rule = *request_.engine;
    if (!rule.warning.empty() && result_.runs.empty() && !is_stream()) {
      result_.warnings.emplace_back(rule.warning);
    }
    const auto decided = rule.plan({request_, snapshot_, trace_, config, attentions_,
                                    result_.weights, result_.prompt, result_.end, pool_});
    if (is_stream()) result_.end = result_.prompt + decided->allocated_tokens.size();
    for (const std::string& name : request_.policies) {
      if (decided->plans.empty() || FindPolicy(name)->tuned_by != Tuning::kBlocks) {
        AddRun(name, config, decided->schedules);
        continue;
      }
      ReplayRun run = StartRun(name, config, decided->schedules);
      for (const uint32_t layer : result_.traced_layers) {
        run.plans.push_back(decided->plans[FindLayerPlace(layer)]);
        run.plans.back().layer = layer;
      }
      run.engine = decided;
      result_.runs.push_back(std::move(run));
    }
  }

  void ScheduleBudgets() {
    std::vector<KeepBudget> budgets = request_.budgets;
    for (const double target : request_.targets)
      budgets.push_back({std::nullopt, 1 / target, true});
    if (budgets.empty()) {
      const BlockConfig defaults;
      budgets.push_back({std::nullopt, 1 / static_cast<double>(defaults.target_lossy_ratio), true});
    }
    uint64_t least = result_.end;
    for (const KeepBudget& budget : budgets) least = std::min(least, budget.At(result_.end));
    result_.config = FollowTrace(request_.config, request_.chosen, least, result_.followed);
    const BudgetSteps steps{FirstEviction(result_.config, trace_.q_start, result_.prompt),
                            result_.end};
    const LayerRange range = EvictedLayers(result_.config, layer_count());
    for (const KeepBudget& budget : budgets) {
      BlockConfig config = result_.config;
      config.target_mode = TargetMode::kAdaptive;
      config.target_lossy_ratio = budget.tokens ? NAN : static_cast<float>(1 / budget.share);
      for (const std::string& name : request_.policies) {
        if (IsThere(name)) continue;
        RequireFloor(*FindPolicy(name), config, request_.paper, budget, result_.end);
        ReplayRun run = StartRun(name, config, {});
        run.budget = budget;
        const PolicyOptions options = OptionsFor(run);
        for (uint32_t i = 0; i < layer_count(); ++i) {
          run.schedules.push_back(
              BudgetSchedule(*FindPolicy(name), options, budget, steps, PlaceIn(range, i)));
          run.schedules.back().layer = snapshot_.layers[i].index;
        }
        result_.runs.push_back(std::move(run));
      }
    }
  }

  Rope GetRotation(const LayerAttention& attention) const {
    Rope rope = request_.re_rotation->Of(ModelNumber(attention.kv()));
    RequireFit(rope, attention.head_dim());
    RequireOneSetOfFrequencies(rope, result_.end, "--re-rotate");
    return rope;
  }

  // Plans all runs, layer by layer, except those that the engine planned itself.
  void PlanLayers() {
    for (ReplayRun& run : result_.runs) KeepUntraced(run);
    std::vector<PolicyOptions> options;
    for (const ReplayRun& run : result_.runs) options.push_back(OptionsFor(run));
    for (const LayerAttention& attention : attentions_) {
      std::vector<PlanJob> jobs;
      std::vector<ReplayRun*> runs;
      for (size_t i = 0; i < result_.runs.size(); ++i) {
        ReplayRun& run = result_.runs[i];
        if (run.engine) continue;
        jobs.push_back({FindPolicy(run.policy), &options[i],
                        &run.schedules[FindLayerPlace(attention.layer())]});
        runs.push_back(&run);
      }
      std::vector<LayerPlan> plans = PlanLayer(attention, result_.prompt, jobs, pool_);
      for (size_t i = 0; i < runs.size(); ++i) {
        if (request_.re_rotation && runs[i]->info().tuned_by == Tuning::kSinks) {
          plans[i].rotated_by = GetRotation(attention);
        }
        runs[i]->plans.push_back(std::move(plans[i]));
      }
    }
  }

  void SortByRatio() {
    std::stable_sort(result_.runs.begin(), result_.runs.end(),
                     [](const ReplayRun& a, const ReplayRun& b) { return a.ratio() < b.ratio(); });
  }

  void CountBytes(ReplayRun& run) const {
    std::vector<LengthWalk> walks(run.schedules.begin(), run.schedules.end());
    for (uint64_t token = result_.prompt; token < run.end; ++token) {
      StepBytes step{token, 0, 0, 0};
      for (size_t i = 0; i < snapshot_.layers.size(); ++i) {
        const uint64_t row = snapshot_.layers[i].row_bytes();
        const uint64_t seen = TokensSeen(trace_, snapshot_.layers[i].index, token);
        step.full += seen * row;
        step.kept += std::min(walks[i].At(token), seen) * row;
      }
      step.allocated = step.kept;
      if (run.engine) {
        const uint64_t row = snapshot_.layers.front().row_bytes();
        step.allocated = run.engine->allocated_tokens[token - result_.prompt] * row;
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
        ChooseRows(result_.prompt, result_.end, request_.quality_rows, request_.seed);
    std::vector<AttentionSamples> pooled(result_.runs.size(),
                                         AttentionSamples(result_.measured.population));
    if (progress_ != nullptr) progress_->Begin(snapshot_.kv_bytes());
    for (size_t i = 0; i < attentions_.size(); ++i) {
      std::vector<const LayerPlan*> plans;
      for (const ReplayRun& run : result_.runs) plans.push_back(&run.plans[i]);
      std::vector<LayerQuality> of_layer = MeasureLayer(
          attentions_[i], plans, result_.measured, pooled, pool_, prediction.Begin(attentions_[i]));
      for (size_t r = 0; r < of_layer.size(); ++r) {
        prediction.Take(r, of_layer[r]);
        result_.runs[r].layers.push_back(std::move(of_layer[r]));
      }
      if (progress_ != nullptr) {
        progress_->Advance(attentions_[i].kv().row_bytes() * attentions_[i].kv().k.tokens());
      }
    }
    for (size_t r = 0; r < pooled.size(); ++r) {
      result_.runs[r].quality = pooled[r].Summarise();
      result_.runs[r].evicting = pooled[r].SummariseEvicting();
      if (auto why = prediction.Finish(r, result_.measured, result_.runs[r])) WarnOnce(*why);
    }
  }

  const Snapshot& snapshot_;  // as stored; its bytes are counted
  const Snapshot values_;     // as the model computed it; queries attend to it
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

}  // namespace kv::eviction
