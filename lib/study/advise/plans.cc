// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/plans.h"

#include <algorithm>

#include "lib/study/eviction/rule.h"

namespace kv::advise {
namespace {

// A candidate's schedule in one layer of a run.
eviction::LayerSchedule ScheduleOf(const RunOf& run, size_t layer, const Candidate& candidate,
                                   uint64_t seed) {
  const eviction::BudgetSteps steps{
      eviction::FirstEviction(eviction::Sanitised({.trigger_min_tokens = 1}), run.trace().q_start,
                              run.prompt()),
      run.end()};
  eviction::LayerSchedule schedule =
      eviction::BudgetSchedule(*eviction::FindPolicy(candidate.policy), candidate.Options(seed),
                               candidate.budget, steps, run.PlaceOf(layer));
  schedule.layer = run.layers()[layer].layer();
  return schedule;
}

}  // namespace

std::vector<eviction::LayerPlan> PlanCandidates(const RunOf& run, size_t layer,
                                                std::span<const Candidate* const> candidates,
                                                uint64_t seed, ThreadPool& pool) {
  std::vector<eviction::PolicyOptions> options;
  std::vector<eviction::LayerSchedule> schedules;
  for (const Candidate* candidate : candidates) {
    options.push_back(candidate->Options(seed));
    schedules.push_back(ScheduleOf(run, layer, *candidate, seed));
  }
  std::vector<eviction::PlanJob> jobs;
  for (size_t i = 0; i < candidates.size(); ++i) {
    jobs.push_back({eviction::FindPolicy(candidates[i]->policy), &options[i], &schedules[i]});
  }
  return eviction::PlanLayer(run.layers()[layer], run.prompt(), jobs, pool);
}

namespace {

// The plan of a layer whose kv heads follow different candidates.
PlanOfLayer PlanMixed(const RunOf& run, size_t layer, const std::vector<Candidate>& candidates,
                      const std::vector<uint32_t>& of_unit, uint64_t seed, ThreadPool& pool) {
  std::vector<uint32_t> distinct = of_unit;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<const Candidate*> used;
  for (const uint32_t c : distinct) {
    if (c < candidates.size()) used.push_back(&candidates[c]);
  }
  const std::vector<eviction::LayerPlan> plans = PlanCandidates(run, layer, used, seed, pool);
  PlanOfLayer mixed;
  mixed.plan.layer = run.layers()[layer].layer();
  if (distinct.size() == 1) {
    if (!plans.empty()) mixed.plan = plans.front();
    mixed.events.assign(mixed.plan.units, mixed.plan.events);
    return mixed;
  }
  mixed.plan.units = run.layers()[layer].kv_heads();
  mixed.events.resize(mixed.plan.units);
  for (uint32_t unit = 0; unit < mixed.plan.units; ++unit) {
    const auto at = std::lower_bound(distinct.begin(), distinct.end(), of_unit[unit]);
    const auto index = static_cast<size_t>(at - distinct.begin());
    if (index >= plans.size()) continue;  // keeps all, and sorts last
    const uint32_t from = plans[index].units == 1 ? 0 : unit;
    for (uint64_t position = 0; position < run.end(); ++position) {
      const uint32_t last = plans[index].last_seen(from, position);
      if (last != eviction::LayerPlan::kStays) mixed.plan.Drop(unit, position, last);
    }
    mixed.events[unit] = plans[index].events;
  }
  return mixed;
}

}  // namespace

std::vector<PlanOfLayer> PlansOf(const RunOf& run, const std::vector<Candidate>& candidates,
                                 const Measured& measured, const Choice& choice, uint64_t seed,
                                 ThreadPool& pool) {
  std::vector<PlanOfLayer> plans;
  size_t unit = 0;
  for (size_t layer = 0; layer < run.layers().size(); ++layer) {
    std::vector<uint32_t> of_unit;  // candidates; UINT32_MAX keeps all
    for (; unit < choice.size() && measured.units[unit].layer == run.layers()[layer].layer();
         ++unit) {
      of_unit.push_back(measured.units[unit].options[choice[unit]].candidate);
    }
    plans.push_back(PlanMixed(run, layer, candidates, of_unit, seed, pool));
  }
  return plans;
}

void ForEachEvent(const std::vector<PlanOfLayer>& plans,
                  const std::function<void(const eviction::PlanEvent&)>& visit) {
  std::vector<std::vector<size_t>> next;  // [layer][unit]
  for (const PlanOfLayer& layer : plans) next.emplace_back(layer.events.size());
  for (;;) {
    uint64_t token = UINT64_MAX;
    for (size_t i = 0; i < plans.size(); ++i) {
      for (size_t u = 0; u < next[i].size(); ++u) {
        const auto& events = plans[i].events[u];
        if (next[i][u] < events.size()) token = std::min(token, events[next[i][u]].token);
      }
    }
    if (token == UINT64_MAX) return;
    for (size_t i = 0; i < plans.size(); ++i) {
      for (uint32_t u = 0; u < next[i].size(); ++u) {
        const auto& events = plans[i].events[u];
        if (next[i][u] == events.size() || events[next[i][u]].token != token) continue;
        eviction::PlanEvent event{plans[i].plan.layer, std::nullopt, events[next[i][u]++],
                                  plans[i].plan.HeldBefore(u, token + 1)};
        if (plans[i].plan.units > 1) event.kv_head = u;
        visit(event);
      }
    }
  }
}

}  // namespace kv::advise
