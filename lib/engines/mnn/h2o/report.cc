// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The fields of kvtool.h2o and of its events, under the engine's names.
#include "lib/engines/mnn/h2o/report.h"

#include <cmath>

#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv::mnn::h2o {
namespace {

using eviction::PlanEvent;

uint64_t KeptBy(const PlanEvent& event) { return KeptTokens(event.kept); }

const Fields<PlanEvent>& EvictionFields() {
  static const Fields<PlanEvent> fields = {
      Fields<PlanEvent>::Inline(eviction::PlanEventPartFields()),
      {"kept_tokens", "Tokens that are kept", KeptBy},
      {"evicted_tokens", "Tokens that are evicted",
       [](const PlanEvent& event) { return event.eviction.length_before - KeptBy(event); }},
      {"keep_ratio", "Eviction: kept_tokens over length_before", [](const PlanEvent& event) {
         return static_cast<double>(KeptBy(event)) /
                static_cast<double>(event.eviction.length_before);
       }}};
  return fields;
}

// Returns the ranges that a call planned. A layer without rows has a length, but its tokens are
// unknown.
std::optional<std::vector<std::array<uint64_t, 2>>> PlannedBy(const MnnCall& call) {
  if (!call.end.decision.plan.empty() && call.planned.empty()) return std::nullopt;
  return eviction::ListRanges(call.planned);
}

const Fields<MnnCall>& DecisionFields() {
  static const Fields<MnnCall> fields = {
      {"floor_dominates",
       "Layer call: whether sink and recent blocks reach the target, so nothing is evicted",
       [](const MnnCall& call) { return call.end.decision.budget.floor_dominates; }},
      {"kept_tokens", "Tokens that are kept",
       [](const MnnCall& call) { return call.end.decision.kept; }},
      {"evicted_tokens", "Tokens that are evicted",
       [](const MnnCall& call) { return call.end.decision.evicted; }},
      {"kept",
       "[first, count] of each run of positions that is kept, ascending; absent if not known",
       PlannedBy, Absent()},
      Fields<MnnCall>::Inline(&MnnCall::metrics, MetricsFields())};
  return fields;
}

const Fields<MnnCall>& CallFields() {
  static const Fields<MnnCall> fields = {
      {"global_step", "Layer call: number of layer calls so far, including this one",
       [](const MnnCall& call) { return call.start.global_step; }},
      {"plan_applied", "Layer call: whether a pending plan was applied at the call's start",
       [](const MnnCall& call) { return call.start.plan_applied; }},
      {"plan_dropped", "Layer call: whether a pending plan did not fit and was dropped",
       [](const MnnCall& call) { return call.start.plan_dropped; }},
      {"length_before", "Tokens in the layer's cache before",
       [](const MnnCall& call) { return call.start.length_before; }},
      {"length_compacted", "Layer call: tokens after a plan was applied, without the new one",
       [](const MnnCall& call) { return call.start.length_compacted; }},
      {"length", "Layer call: tokens in the cache, new token included",
       [](const MnnCall& call) { return call.start.length; }},
      {"triggered", "Layer call: whether the layer made a decision",
       [](const MnnCall& call) { return call.end.triggered; }},
      {"final_keep_tokens", "Layer call: tokens that the engine lets its lossless path compress",
       [](const MnnCall& call) { return call.end.final_keep_tokens; }},
      Fields<MnnCall>::Inline(
          [](const MnnCall& call) { return call.end.triggered ? &call : nullptr; },
          DecisionFields())};
  return fields;
}

std::optional<uint32_t> EventLayer(const ReplayEvent& event) {
  if (event.call == nullptr) return std::nullopt;
  return event.run.schedules[event.call->start.layer].layer;
}

// Returns a field for a ratio: a whole number without a fraction, any other as a float prints; null
// for a budget of tokens.
Fields<eviction::BlockConfig>::Field Ratio(std::string_view name, std::string_view text,
                                           float eviction::BlockConfig::*member,
                                           bool nullable = true) {
  const auto get = [member](const eviction::BlockConfig& config) -> Value {
    const float value = config.*member;
    if (std::isnan(value)) return nullptr;
    const auto whole = static_cast<int64_t>(value);
    return value == static_cast<float>(whole) ? Value(whole) : Value(ShortestDouble(value));
  };
  const Value number = "number";
  const Value type =
      Value::Object{{"type", nullable ? Value(Value::List{number, "null"}) : number}};
  return {name, text, get, {.schema = type}};
}

const Fields<eviction::BlockConfig>& ConfigFields() {
  using Config = eviction::BlockConfig;
  static const Fields<Config> fields = {
      {"h2o_layer_start", "First layer that evicts", &Config::layer_start},
      {"h2o_layer_end", "Last layer that evicts; -1: the model's last layer", &Config::layer_end},
      {"h2o_block_tokens", "Tokens per block, which is kept or evicted as a whole",
       &Config::block_tokens},
      {"h2o_sink_tokens", "First tokens that stay", &Config::sink_tokens},
      {"h2o_recent_tokens", "Last tokens that stay", &Config::recent_tokens},
      {"h2o_target_mode",
       "How the engine reads its target: adaptive by h2o_target_lossy_ratio, static by "
       "h2o_target_keep_ratio",
       [](const Config& config) {
         return config.target_mode == eviction::TargetMode::kStatic ? "static" : "adaptive";
       },
       OneOf("static", "adaptive")},
      Ratio("h2o_target_keep_ratio",
            "Target of mode static: share of the tokens that stays, 0 to 1",
            &Config::target_keep_ratio),
      Ratio("h2o_target_lossy_ratio",
            "Target of mode adaptive: ratio of tokens to kept tokens, at least 1",
            &Config::target_lossy_ratio),
      Ratio("h2o_ema_alpha", "Weight of a block's old score against that of the new step, 0 to 1",
            &Config::ema_alpha, false),
      {"h2o_update_interval",
       "Steps between two decisions: tokens in the design, layer calls in MNN's code",
       &Config::update_interval},
      {"h2o_trigger_min_tokens", "Shortest cache in which tokens are evicted, in tokens",
       &Config::trigger_min_tokens}};
  return fields;
}

const Fields<MnnReplay>& EngineReportFields() {
  static const Fields<MnnReplay> fields = {
      Fields<MnnReplay>::Inline(&MnnReplay::metrics, MetricsFields()),
      {"meta_previous",
       "Length that the engine's shared record has at the end, which follows the last layer only",
       &MnnReplay::meta_previous},
      {"plans_dropped", "Plans that no longer fitted the cache", &MnnReplay::plans_dropped}};
  return fields;
}

template <typename Member>
auto OfRequest(Member member) {
  return [member](const Report& of) { return std::invoke(member, of.request); };
}

std::vector<std::string> BudgetTexts(const Report& of) {
  std::vector<std::string> texts;
  for (const eviction::KeepBudget& budget : of.request.budgets) texts.push_back(budget.Text());
  return texts;
}

std::vector<std::string> FollowedNames(const Report& of) {
  std::vector<std::string> names;
  for (const std::string& name : of.result.followed) names.push_back("h2o_" + name);
  return names;
}

const Fields<Report>& ParamsFields() {
  static const Fields<Report> fields = {
      {"engine",
       "exact: policies as their papers have them; design: as MNN documents it; mnn: its code; "
       "mnn-r6: its older code",
       [](const Report& of) {
         return of.result.engine == nullptr ? "exact" : of.result.engine->name;
       },
       OneOf("exact", "design", "mnn", "mnn-r6")},
      {"schedule",
       "paper: the budget applies at every step after the prompt. mnn: at each trigger, the ratio "
       "applies to what the cache then holds.",
       [](const Report& of) {
         return of.result.engine == nullptr ? "paper" : of.result.engine->schedule;
       },
       OneOf("paper", "mnn")},
      {"scores", "Scores from attention: exact softmax, or flash as MNN's kernel",
       [](const Report& of) { return eviction::Name(of.result.weights); }, OneOf("exact", "flash")},
      {"granularity", "Whether a plan is made per layer or per kv head",
       [](const Report& of) {
         return of.request.granularity == eviction::Granularity::kLayer ? "layer" : "kv-head";
       },
       OneOf("layer", "kv-head")},
      {"seed", "Seed of policy random and of the rows drawn", OfRequest(&ReplayRequest::seed)},
      {"quality_rows", "Largest number of query rows to measure in a layer; 0: all",
       OfRequest(&ReplayRequest::quality_rows)},
      {"policies", "Policies, as resolved", OfRequest(&ReplayRequest::policies)},
      {"target_ratios", "Target ratios; empty with budgets", OfRequest(&ReplayRequest::targets)},
      {"budgets", "As given to --budget.", BudgetTexts},
      {"followed_the_trace",
       "Parameters of the engine that were not given and follow from the trace's length.",
       FollowedNames},
      {"paper", "Parameters of the papers' policies",
       [](const Report& of) { return of.result.paper; }, eviction::PaperFields()},
      {"re_rotated", "Whether streaming counted positions within its cache, as published",
       [](const Report& of) { return of.request.re_rotation.has_value(); }}};
  return fields;
}

const Report& Whole(const Report& report) { return report; }

}  // namespace

using eviction::PlanEvent;

const Fields<ReplayEvent>& ReplayEventFields() {
  using Event = ReplayEvent;
  static const Fields<Event> fields = {
      {"schema", "Name and version of this schema",
       [](const Event&) { return "kvtool.h2o-event/1"; }, OneOf("kvtool.h2o-event/1")},
      {"type",
       "call: a layer call of the engines design, mnn and mnn-r6 that made or applied a plan; "
       "eviction: one of engine exact; step: bytes after a decoded token",
       &Event::type, OneOf("call", "eviction", "step")},
      {"policy", "What chooses the tokens to keep",
       [](const Event& event) { return event.run.policy; }},
      {"target_ratio", "Ratio asked for; null for a budget in tokens",
       [](const Event& event) { return event.run.target_ratio(); }, Nullable()},
      {"token", "Position of the token decoded", &Event::token},
      Fields<Event>::Inline(&Event::step, eviction::BytesFields()),
      {"layer", "Number of the layer", EventLayer, Absent()},
      Fields<Event>::Inline(&Event::call, CallFields()),
      Fields<Event>::Inline(&Event::eviction, EvictionFields())};
  return fields;
}

void ForEachEvent(const ReplayResult& result, const std::function<void(const ReplayEvent&)>& emit) {
  for (const ReplayRun& run : result.runs) {
    eviction::PlanCursor plans(run);
    const MnnReplay* mnn = FindMnnReplay(run);
    size_t calls = 0;
    const auto events_before = [&](uint64_t end) {
      if (mnn == nullptr) {
        plans.EmitUpTo(end, [&](const PlanEvent& event) {
          emit({run, "eviction", event.eviction.token, nullptr, nullptr, &event});
        });
        return;
      }
      const std::vector<MnnCall>& all = mnn->calls;
      for (; calls < all.size() && all[calls].token < end; ++calls) {
        emit({run, "call", all[calls].token, nullptr, &all[calls]});
      }
    };
    for (const eviction::StepBytes& step : run.steps) {
      events_before(step.token + 1);
      emit({run, "step", step.token, &step});
    }
    events_before(UINT64_MAX);
  }
}

const Fields<MnnMetrics>& MetricsFields() {
  using M = MnnMetrics;
  static const Fields<M> fields = {
      {"h2o_keep_ratio", "Kept tokens over length, of the last plan of any layer", &M::keep_ratio,
       Nullable()},
      {"h2o_lossy_ratio",
       "Bytes before / (bytes kept + bytes of the plan itself), for the last plan of any layer",
       &M::lossy_ratio, Nullable()},
      {"h2o_target_keep_effective",
       "Target of the last decision as a share of the length, not below the floor",
       &M::target_keep_effective, Nullable()},
      {"h2o_floor_keep_by_recent_sink",
       "Share of the length that sink and recent blocks alone keep", &M::floor_keep, Nullable()},
      {"h2o_block_quantized_keep",
       "Target of the last decision as a share of the length, rounded up to whole blocks",
       &M::quantized_keep, Nullable()},
      {"h2o_last_evict_tokens", "Tokens that the last decision evicts", &M::last_evict_tokens},
      {"h2o_total_evict_tokens",
       "Tokens evicted by all plans so far, counted per layer when planned",
       &M::total_evict_tokens}};
  return fields;
}

const Fields<Report>& ReportFields() {
  static const Fields<Run> runs = RunFields(
      ConfigFields(), {"engine_report",
                       "Figures that the engine itself reports at the end; null with engine exact "
                       "and for other policies",
                       [](const Run& of) { return FindMnnReplay(of.run); }, EngineReportFields()});
  static const Fields<Report> fields = {
      {"trace", "The attention trace that was replayed", Whole, eviction::TraceFields()},
      {"params", "Parameters of the run", Whole, ParamsFields()},
      {"quality_rows", "Query rows of a layer that the attention figures cover",
       [](const Report& of) { return of.result.measured; }, eviction::MeasuredFields()},
      {"runs", "One entry per policy and target", eviction::ListRuns, runs, CsvRows(Items(1))},
      {"notes",
       "Notes on the figures: a policy that equals another, a budget met in whole blocks, rows "
       "that the trace lacks.",
       [](const Report& of) { return of.result.notes; }},
      {"warnings", "Warnings of the run", [](const Report& of) { return of.result.warnings; }}};
  return fields;
}

}  // namespace kv::mnn::h2o
