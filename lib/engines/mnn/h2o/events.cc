// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/engines/mnn/h2o/report.h"

namespace kv::mnn::h2o {

using eviction::PlanEvent;

namespace {

uint64_t KeptBy(const PlanEvent& event) { return KeptTokens(event.kept); }

const Fields<PlanEvent>& EvictionFields() {
  static const Fields<PlanEvent> fields = {
      Fields<PlanEvent>::Inline(eviction::PlanEventPartFields()),
      {"kept_tokens", "Tokens that stay", KeptBy},
      {"evicted_tokens", "Tokens that go",
       [](const PlanEvent& event) { return event.eviction.length_before - KeptBy(event); }},
      {"keep_ratio", "Eviction: kept_tokens over length_before", [](const PlanEvent& event) {
         return static_cast<double>(KeptBy(event)) /
                static_cast<double>(event.eviction.length_before);
       }}};
  return fields;
}

// A layer without rows has a length, but nothing says which tokens make it up.
std::optional<std::vector<std::array<uint64_t, 2>>> PlannedBy(const MnnCall& call) {
  if (!call.end.decision.plan.empty() && call.planned.empty()) return std::nullopt;
  return eviction::RangesOf(call.planned);
}

const Fields<MnnCall>& DecisionFields() {
  static const Fields<MnnCall> fields = {
      {"floor_dominates",
       "Call: whether sink and recent blocks alone reach the target, so that nothing goes",
       [](const MnnCall& call) { return call.end.decision.budget.floor_dominates; }},
      {"kept_tokens", "Tokens that stay",
       [](const MnnCall& call) { return call.end.decision.kept; }},
      {"evicted_tokens", "Tokens that go",
       [](const MnnCall& call) { return call.end.decision.evicted; }},
      {"kept",
       "[first, count] of each run of positions that stays, ascending; absent where nothing says",
       PlannedBy,
       {.absent = true}},
      Fields<MnnCall>::Inline(&MnnCall::metrics, MetricsFields())};
  return fields;
}

const Fields<MnnCall>& CallFields() {
  static const Fields<MnnCall> fields = {
      {"global_step", "Call: layer calls so far, including this one",
       [](const MnnCall& call) { return call.start.global_step; }},
      {"plan_applied", "Call: whether a pending plan was applied at its start",
       [](const MnnCall& call) { return call.start.plan_applied; }},
      {"plan_dropped", "Call: whether a pending plan no longer fitted the cache and was dropped",
       [](const MnnCall& call) { return call.start.plan_dropped; }},
      {"length_before", "Tokens in the layer's cache before",
       [](const MnnCall& call) { return call.start.length_before; }},
      {"length_compacted", "Call: tokens in the cache after a plan was applied, before the new one",
       [](const MnnCall& call) { return call.start.length_compacted; }},
      {"length", "Call: tokens in the cache with the new one",
       [](const MnnCall& call) { return call.start.length; }},
      {"triggered", "Call: whether the layer made a decision",
       [](const MnnCall& call) { return call.end.triggered; }},
      {"final_keep_tokens", "Call: tokens that the engine lets its lossless path compress",
       [](const MnnCall& call) { return call.end.final_keep_tokens; }},
      Fields<MnnCall>::Inline(
          [](const MnnCall& call) { return call.end.triggered ? &call : nullptr; },
          DecisionFields())};
  return fields;
}

std::optional<uint32_t> LayerOf(const ReplayEvent& event) {
  if (event.call == nullptr) return std::nullopt;
  return event.run.schedules[event.call->start.layer].layer;
}

}  // namespace

const Fields<ReplayEvent>& ReplayEventFields() {
  using Event = ReplayEvent;
  static const Fields<Event> fields = {
      {"schema",
       "Name and version of this schema",
       [](const Event&) { return "kvtool.h2o-event/1"; },
       {.choices = {"kvtool.h2o-event/1"}}},
      {"type",
       "call: a layer call of the engines design, mnn and mnn-r6 that made or applied a plan; "
       "eviction: one of engine exact; step: bytes after a decoded token",
       &Event::type,
       {.choices = {"call", "eviction", "step"}}},
      {"policy", "What chooses the tokens to keep",
       [](const Event& event) { return event.run.policy; }},
      {"target_ratio",
       "Ratio asked for; null for a budget in tokens",
       [](const Event& event) { return event.run.target_ratio(); },
       {.nullable = true}},
      {"token", "Position of the token decoded", &Event::token},
      Fields<Event>::Inline(&Event::step, eviction::BytesFields()),
      {"layer", "Number of the layer", LayerOf, {.absent = true}},
      Fields<Event>::Inline(&Event::call, CallFields()),
      Fields<Event>::Inline(&Event::eviction, EvictionFields())};
  return fields;
}

void ForEachEvent(const ReplayResult& result, const std::function<void(const ReplayEvent&)>& emit) {
  for (const ReplayRun& run : result.runs) {
    eviction::PlanCursor plans(run);
    const MnnReplay* mnn = MnnReplayOf(run);
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

}  // namespace kv::mnn::h2o
