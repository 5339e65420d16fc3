// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/h2o/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/number.h"
#include "lib/core/base/word.h"
#include "lib/engines/mnn/h2o/quality_report.h"

namespace kv::mnn::h2o {
namespace {

Json ConfigJson(const eviction::BlockConfig& config) {
  Json json = Json::object();
  eviction::ForEachParameter(config, [&](std::string_view name, double value) {
    if (name == "h2o_target_mode") {
      json[std::string(name)] = value == 0 ? "static" : "adaptive";
    } else if (std::isnan(value)) {
      json[std::string(name)] = nullptr;  // a budget of tokens has no ratio
    } else if (value == static_cast<double>(static_cast<int64_t>(value))) {
      json[std::string(name)] = static_cast<int64_t>(value);
    } else {
      json[std::string(name)] = ShortestDouble(static_cast<float>(value));
    }
  });
  return json;
}

Json PaperJson(const eviction::PaperParameters& paper) {
  return {{"snapkv_window", paper.window},        {"snapkv_kernel", paper.kernel},
          {"pyramid_beta", paper.pyramid_beta},   {"streaming_sinks", paper.sinks},
          {"h2o_heavy_share", paper.heavy_share}, {"after_prompt", paper.grow ? "grow" : "hold"}};
}

Json RangesJson(const KeepPlan& plan) {
  Json ranges = Json::array();
  for (const KeepRange& range : plan) ranges.push_back({range.begin, range.count});
  return ranges;
}

Json MetricsJson(const MnnMetrics& metrics) {
  return {{"h2o_keep_ratio", metrics.keep_ratio},
          {"h2o_lossy_ratio", metrics.lossy_ratio},
          {"h2o_target_keep_effective", metrics.target_keep_effective},
          {"h2o_floor_keep_by_recent_sink", metrics.floor_keep},
          {"h2o_block_quantized_keep", metrics.quantized_keep},
          {"h2o_last_evict_tokens", metrics.last_evict_tokens},
          {"h2o_total_evict_tokens", metrics.total_evict_tokens}};
}

Json LayersJson(const ReplayResult& result, const ReplayRun& run) {
  Json layers = Json::array();
  for (const eviction::LayerSchedule& schedule : run.schedules) {
    const uint64_t length = eviction::LengthWalk(schedule).At(result.end - 1);
    Json layer = {{"layer", schedule.layer},
                  {"in_range", schedule.in_range},
                  {"traced", std::count(result.traced_layers.begin(), result.traced_layers.end(),
                                        schedule.layer) != 0},
                  {"triggers", schedule.triggers},
                  {"floor_dominated_triggers", schedule.floor_dominated},
                  {"evictions", schedule.evictions_in_effect(result.end)},
                  {"full_tokens", result.end},
                  {"kept_tokens", length},
                  {"kept_fraction", static_cast<double>(length) / static_cast<double>(result.end)}};
    for (const eviction::LayerPlan& plan : run.plans) {
      if (plan.layer == schedule.layer && plan.units == 1) {
        layer["kept"] = RangesJson(plan.HeldBefore(0, result.end));
      }
    }
    layer["attention"] = layer["evicting"] = nullptr;
    for (const eviction::LayerQuality& quality : run.layers) {
      if (quality.layer != schedule.layer) continue;
      layer["attention"] = QualityJson(quality.summary);
      layer["evicting"] = QualityJson(quality.evicting);
      layer["heads"] = HeadsJson(quality);
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

double RatioOf(uint64_t full, uint64_t kept) {
  return kept == 0 ? 1.0 : static_cast<double>(full) / static_cast<double>(kept);
}

Json StepJson(const StepBytes& step) {
  return {{"token", step.token},
          {"full_bytes", step.full},
          {"kept_bytes", step.kept},
          {"allocated_bytes", step.allocated},
          {"ratio", RatioOf(step.full, step.kept)}};
}

// What was asked to stay, and what does at the end of the last step in a layer that evicts.
Json BudgetJson(const ReplayRun& run) {
  if (!run.budget) return nullptr;
  const eviction::KeepBudget& budget = *run.budget;
  return {{"text", budget.Text()},
          {"share", budget.tokens ? Json(nullptr) : Json(budget.share)},
          {"tokens", budget.tokens ? Json(*budget.tokens) : Json(nullptr)},
          {"tokens_at_end", budget.At(run.end)}};
}

Json RunJson(const ReplayResult& result, const ReplayRun& run, bool detail) {
  Json json = {{"policy", run.policy},
               {"same_as", run.same_as.empty() ? Json(nullptr) : Json(run.same_as)},
               {"target_ratio", run.target_ratio()},
               {"budget", BudgetJson(run)},
               {"params", ConfigJson(run.config)},
               {"triggers", run.triggers()},
               {"floor_dominated_triggers", run.floor_dominated()},
               {"evictions", run.evictions()}};
  const std::string why = WhyNothing(result, run);
  json["nothing_evicted_because"] = why.empty() ? Json(nullptr) : Json(why);
  const StepBytes last = run.steps.empty() ? StepBytes{} : run.steps.back();
  json["full_bytes"] = last.full;
  json["kept_bytes"] = last.kept;
  json["allocated_bytes"] = last.allocated;
  json["ratio"] = run.ratio();
  json["mean_ratio"] = run.mean_ratio();
  json["removed_fraction"] = 1 - 1 / run.ratio();
  json["engine_report"] = nullptr;
  if (run.mnn) {
    json["engine_report"] = MetricsJson(run.mnn->metrics);
    json["engine_report"]["meta_previous"] = run.mnn->meta_previous;
    json["engine_report"]["plans_dropped"] = run.mnn->plans_dropped;
  }
  json["attention"] = run.quality ? QualityJson(*run.quality) : Json(nullptr);
  json["evicting"] = EvictingJson(run);
  json["predicted_kl"] = PredictedKlJson(run);
  json["deciles"] = DecilesJson(run.layers, result.measured);
  json["layers"] = LayersJson(result, run);
  if (detail) {
    json["steps"] = Json::array();
    for (const StepBytes& step : run.steps) json["steps"].push_back(StepJson(step));
  }
  return json;
}

}  // namespace

std::string_view Name(WeightRule rule) { return rule == WeightRule::kSoftmax ? "exact" : "flash"; }

Json ReportJson(const Snapshot& snapshot, const AttentionTrace& trace, const ReplayRequest& request,
                const ReplayResult& result, bool detail) {
  Json json = Json::object();
  json["trace"] = {{"file", trace.path},
                   {"level", WithUnderscores(Name(trace.level))},
                   {"format", WithUnderscores(trace.format)},
                   {"engine", trace.engine},
                   {"model", trace.model},
                   {"layers", result.traced_layers},
                   {"missing_layers", result.missing_layers},
                   {"rows", trace.rows},
                   {"q_start", trace.q_start},
                   {"query_heads", trace.query_heads},
                   {"kv_heads", snapshot.layers.front().k.heads},
                   {"head_dim", snapshot.layers.front().k.head_dim},
                   {"prompt_tokens", result.prompt},
                   {"decode_steps", result.end - result.prompt},
                   {"undefined_rows", result.undefined.rows},
                   {"undefined_gradient_rows", result.undefined_gradients.rows},
                   {"open_loop", true}};
  json["params"] = {
      {"engine", Name(result.engine)},
      {"schedule", Name(result.clock)},
      {"scores", Name(result.weights)},
      {"granularity", request.granularity == eviction::Granularity::kLayer ? "layer" : "kv-head"},
      {"seed", request.seed},
      {"quality_rows", request.quality_rows},
      {"policies", request.policies},
      {"target_ratios", request.targets},
      {"budgets", Json::array()},
      {"followed_the_trace", result.followed},
      {"paper", PaperJson(result.paper)},
      {"re_rotated", request.re_rotation.has_value()}};
  for (const eviction::KeepBudget& budget : request.budgets) {
    json["params"]["budgets"].push_back(budget.Text());
  }
  json["quality_rows"] = {{"measured", result.measured.positions.size()},
                          {"of", result.measured.population},
                          {"sampled", result.measured.is_sample()}};
  json["runs"] = Json::array();
  for (const ReplayRun& run : result.runs) json["runs"].push_back(RunJson(result, run, detail));
  json["notes"] = result.notes;
  json["warnings"] = result.warnings;
  return json;
}

namespace {

// The events of a run, layer by layer within a token.
class PlanCursor {
 public:
  explicit PlanCursor(const ReplayRun& run) : run_(run), next_(run.plans.size()) {}

  // Of the tokens before `end`.
  void EmitUpTo(uint64_t end, const std::function<void(const Json&)>& emit) {
    for (;;) {
      uint64_t token = end;
      for (size_t i = 0; i < next_.size(); ++i) token = std::min(token, NextToken(i));
      if (token == end) return;
      for (size_t i = 0; i < next_.size(); ++i) {
        if (NextToken(i) == token) Emit(run_.plans[i], next_[i]++, emit);
      }
    }
  }

 private:
  uint64_t NextToken(size_t plan) const {
    const std::vector<eviction::Eviction>& events = run_.plans[plan].events;
    return next_[plan] < events.size() ? events[next_[plan]].token : UINT64_MAX;
  }
  static void Emit(const eviction::LayerPlan& plan, size_t index,
                   const std::function<void(const Json&)>& emit) {
    const eviction::Eviction& event = plan.events[index];
    for (uint32_t unit = 0; unit < plan.units; ++unit) {
      emit({{"token", event.token},
            {"layer", plan.layer},
            {"kv_head", plan.units == 1 ? Json(nullptr) : Json(unit)},
            {"kept", RangesJson(plan.HeldBefore(unit, event.token + 1))},
            {"length_before", event.length_before}});
    }
  }

  const ReplayRun& run_;
  std::vector<size_t> next_;  // [plan]
};

}  // namespace

void ForEachPlanEvent(const ReplayRun& run, const std::function<void(const Json&)>& emit) {
  PlanCursor(run).EmitUpTo(UINT64_MAX, emit);
}

namespace {

Json EventHeader(const ReplayRun& run, std::string_view type) {
  return {{"schema", "kvtool.h2o-event/1"},
          {"type", type},
          {"policy", run.policy},
          {"target_ratio", run.target_ratio()}};
}

Json CallJson(const ReplayRun& run, const MnnCall& call) {
  Json json = EventHeader(run, "call");
  json["token"] = call.token;
  json["layer"] = run.schedules[call.start.layer].layer;
  json["global_step"] = call.start.global_step;
  json["plan_applied"] = call.start.plan_applied;
  json["plan_dropped"] = call.start.plan_dropped;
  json["length_before"] = call.start.length_before;
  json["length_compacted"] = call.start.length_compacted;
  json["length"] = call.start.length;
  json["triggered"] = call.end.triggered;
  json["final_keep_tokens"] = call.end.final_keep_tokens;
  if (!call.end.triggered) return json;
  const eviction::BlockChoice& decision = call.end.decision;
  json["floor_dominates"] = decision.budget.floor_dominates;
  json["kept_tokens"] = decision.kept;
  json["evicted_tokens"] = decision.evicted;
  // A layer without rows has a length, but nothing says which tokens make it up.
  if (decision.plan.empty() || !call.planned.empty()) json["kept"] = RangesJson(call.planned);
  json.update(MetricsJson(call.metrics));
  return json;
}

}  // namespace

namespace {

Json EvictionJson(const ReplayRun& run, const Json& event) {
  Json json = EventHeader(run, "eviction");
  json.update(event);
  uint64_t kept = 0;
  for (const Json& range : event["kept"]) kept += range[1].get<uint64_t>();
  const auto before = event["length_before"].get<uint64_t>();
  json["kept_tokens"] = kept;
  json["evicted_tokens"] = before - kept;
  json["keep_ratio"] = static_cast<double>(kept) / static_cast<double>(before);
  return json;
}

}  // namespace

void ForEachEvent(const ReplayResult& result, const std::function<void(const Json&)>& emit) {
  for (const ReplayRun& run : result.runs) {
    PlanCursor plans(run);
    size_t calls = 0;
    const auto events_before = [&](uint64_t end) {
      if (!run.mnn) {
        plans.EmitUpTo(end, [&](const Json& event) { emit(EvictionJson(run, event)); });
        return;
      }
      const std::vector<MnnCall>& all = run.mnn->calls;
      while (calls < all.size() && all[calls].token < end) emit(CallJson(run, all[calls++]));
    };
    for (const StepBytes& step : run.steps) {
      events_before(step.token + 1);
      Json json = EventHeader(run, "step");
      json.update(StepJson(step));
      emit(json);
    }
    events_before(UINT64_MAX);
  }
}

std::string WhyNothing(const ReplayResult& result, const ReplayRun& run) {
  if (run.policy == "full" || run.evictions() > 0) return {};
  const eviction::BlockConfig& config = run.config;
  const uint64_t steps = result.end - result.prompt;
  if (run.budget && run.budget->At(result.end) >= result.end) {
    return fmt::format("the budget of {} holds all {} tokens", run.target_text(), result.end);
  }
  bool in_range = false, traced = false;
  for (const eviction::LayerSchedule& schedule : run.schedules) {
    in_range |= schedule.in_range;
    traced |= schedule.in_range && std::count(result.traced_layers.begin(),
                                              result.traced_layers.end(), schedule.layer) != 0;
  }
  if (!traced) {
    return fmt::format("no layer {}: h2o_layer_start {}, h2o_layer_end {}",
                       in_range ? "with rows in the trace is in the range" : "is in the range",
                       config.layer_start, config.layer_end);
  }
  if (run.budget && eviction::FindPolicy(run.policy)->at_prompt_end && result.paper.grow) {
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

}  // namespace kv::mnn::h2o
