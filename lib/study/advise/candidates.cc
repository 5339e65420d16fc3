// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Makes candidates from policies, budgets and parameters, and replays them in the layers of a run.
#include "lib/study/advise/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/snapshot/cast.h"
#include "lib/study/eviction/rule.h"

namespace kv::advise {
namespace {

Candidate OnBudget(const std::string& policy, const eviction::KeepBudget& budget) {
  Candidate candidate;
  candidate.policy = policy;
  candidate.budget = budget;
  candidate.paper.grow = false;  // at each step it keeps its share of the tokens so far
  return candidate;
}

void AddBlock(const CandidateRequest& request, const std::string& policy,
              const eviction::KeepBudget& budget, uint64_t shortest, std::vector<Candidate>& out) {
  const uint64_t least = budget.At(shortest);
  for (const double recent : request.recent) {
    Candidate candidate = OnBudget(policy, budget);
    candidate.config.recent_tokens =
        static_cast<int64_t>(std::floor(recent * static_cast<double>(least)));
    std::vector<std::string> followed;
    candidate.config = eviction::FollowTrace(candidate.config, {"recent_tokens"}, least, followed);
    candidate.config.target_mode = eviction::TargetMode::kAdaptive;
    candidate.config.target_lossy_ratio =
        budget.tokens ? NAN : static_cast<float>(1 / budget.share);
    if (eviction::BlockFloor(candidate.config) > least) continue;
    candidate.parameters =
        fmt::format("blocks of {}, sinks {}, recent {}", candidate.config.block_tokens,
                    candidate.config.sink_tokens, candidate.config.recent_tokens);
    out.push_back(candidate);
  }
}

void AddPaper(const CandidateRequest& request, const eviction::PolicyInfo& policy,
              const eviction::KeepBudget& budget, uint64_t shortest, std::vector<Candidate>& out) {
  const uint64_t least = budget.At(shortest);
  Candidate candidate = OnBudget(std::string(policy.name), budget);
  if (policy.tuned_by == eviction::Tuning::kSinks) {
    for (const uint64_t sinks : request.sinks) {
      if (sinks >= least) continue;
      candidate.paper.sinks = sinks;
      candidate.parameters = fmt::format("sinks {}", sinks);
      out.push_back(candidate);
    }
  } else if (policy.tuned_by == eviction::Tuning::kHeavyShare) {
    for (const double recent : request.recent) {
      candidate.paper.heavy_share = 1 - recent;
      candidate.parameters = fmt::format("recent {:.4g} of it", recent);
      out.push_back(candidate);
    }
  } else if (policy.tuned_by == eviction::Tuning::kWindow) {
    for (const uint64_t window : request.windows) {
      if (window >= least) continue;  // it would be the candidate of policy `window`
      candidate.paper.window = window;
      candidate.parameters = fmt::format("window {}", window);
      out.push_back(candidate);
    }
  } else {
    out.push_back(candidate);
  }
}

// Returns a candidate's schedule in one layer of a run.
eviction::LayerSchedule BuildSchedule(const AdviseRun& run, size_t layer,
                                      const Candidate& candidate, uint64_t seed) {
  const eviction::BudgetSteps steps{
      eviction::FirstEviction(eviction::Sanitised({.trigger_min_tokens = 1}), run.trace().q_start,
                              run.prompt()),
      run.end(), run.stride()};
  eviction::LayerSchedule schedule =
      eviction::BudgetSchedule(*eviction::FindPolicy(candidate.policy), candidate.Options(seed),
                               candidate.budget, steps, run.FindPlace(layer));
  schedule.layer = run.layers()[layer].layer();
  return schedule;
}

}  // namespace

AdviseRun::AdviseRun(std::string name, const Snapshot& snapshot, const AttentionTrace& trace,
                     uint64_t prompt, ThreadPool& pool)
    : name_(std::move(name)),
      snapshot_(snapshot),
      values_(WithoutHadamard(snapshot, pool)),
      trace_(trace),
      prompt_(prompt) {
  for (const LayerKv& layer : values_.layers) {
    const TraceLayer* rows = trace.Find(layer.index);
    if (rows != nullptr) layers_.emplace_back(trace, *rows, layer);
  }
}

std::vector<uint32_t> AdviseRun::missing_layers() const {
  std::vector<uint32_t> missing;
  for (const LayerKv& layer : snapshot_.layers) {
    if (trace_.Find(layer.index) == nullptr) missing.push_back(layer.index);
  }
  return missing;
}

uint64_t AdviseRun::bytes_per_token() const {
  uint64_t bytes = 0;
  for (const LayerKv& layer : snapshot_.layers)
    bytes += layer.row_bytes() * TokensSeen(trace_, layer.index, end() - 1);
  return bytes / end();
}

double AdviseRun::head_bytes_per_token(size_t i) const {
  const LayerKv& layer = *snapshot_.Find(layers_[i].layer());
  return static_cast<double>(layer.row_bytes()) / layer.k.heads;
}

eviction::LayerPlace AdviseRun::FindPlace(size_t i) const {
  eviction::LayerPlace place{true, 0, static_cast<uint32_t>(snapshot_.layers.size())};
  while (snapshot_.layers[place.index].index != layers_[i].layer()) ++place.index;
  return place;
}

uint64_t AdviseRun::stride() const {
  return std::max<uint64_t>(1, CeilDiv(end() - prompt_, kMostSteps));
}

void RequireLike(const AdviseRun& run, const AdviseRun& first) {
  bool same = run.layers().size() == first.layers().size();
  for (size_t i = 0; same && i < first.layers().size(); ++i) {
    const LayerAttention &a = run.layers()[i], &b = first.layers()[i];
    same = a.layer() == b.layer() && a.kv_heads() == b.kv_heads() &&
           a.query_heads() == b.query_heads() && a.head_dim() == b.head_dim();
  }
  if (same && run.snapshot().layers.size() == first.snapshot().layers.size()) return;
  throw Error(Finding::kTraceMismatch,
              "its layers and heads are not those of {}: advice is for one model", first.name())
      .File(run.name());
}

std::string Candidate::Text() const {
  return parameters.empty() ? ShortText() : fmt::format("{}, {}", ShortText(), parameters);
}

std::string Candidate::ShortText() const { return fmt::format("{} {}", policy, budget.Text()); }

eviction::PolicyOptions Candidate::Options(uint64_t seed) const {
  return {config, paper, WeightRule::kSoftmax, eviction::Granularity::kLayer, seed, true};
}

std::vector<std::string> UsualPolicies() {
  std::vector<std::string> names;
  for (const eviction::PolicyInfo& policy : eviction::Policies()) {
    if (policy.is_usual) names.emplace_back(policy.name);
  }
  return names;
}

std::vector<eviction::KeepBudget> UsualBudgets() {
  std::vector<eviction::KeepBudget> budgets;
  for (const double share : {0.75, 0.5, 0.35, 0.25, 0.18, 0.125}) {
    budgets.push_back({std::nullopt, share, false});
  }
  return budgets;
}

std::vector<Candidate> MakeCandidates(const CandidateRequest& request, uint64_t shortest) {
  std::vector<Candidate> candidates;
  for (const std::string& name : request.policies) {
    const eviction::PolicyInfo& policy = *eviction::FindPolicy(name);
    for (const eviction::KeepBudget& budget : request.budgets) {
      if (budget.At(shortest) >= shortest) continue;
      if (policy.tuned_by == eviction::Tuning::kBlocks) {
        AddBlock(request, name, budget, shortest, candidates);
      } else if (policy.spending != eviction::Spending::kNone) {
        AddPaper(request, policy, budget, shortest, candidates);
      }
    }
  }
  return candidates;
}

std::vector<eviction::LayerPlan> PlanCandidates(const AdviseRun& run, size_t layer,
                                                std::span<const Candidate* const> candidates,
                                                uint64_t seed, ThreadPool& pool) {
  std::vector<eviction::PolicyOptions> options;
  std::vector<eviction::LayerSchedule> schedules;
  for (const Candidate* candidate : candidates) {
    options.push_back(candidate->Options(seed));
    schedules.push_back(BuildSchedule(run, layer, *candidate, seed));
  }
  std::vector<eviction::PlanJob> jobs;
  for (size_t i = 0; i < candidates.size(); ++i) {
    jobs.push_back({eviction::FindPolicy(candidates[i]->policy), &options[i], &schedules[i]});
  }
  return eviction::PlanLayer(run.layers()[layer], run.prompt(), jobs, pool, run.stride());
}

namespace {

// Returns the plan of a layer whose kv heads follow different candidates.
PlanOfLayer PlanMixed(const AdviseRun& run, size_t layer, const std::vector<Candidate>& candidates,
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
    if (index >= plans.size()) continue;  // no candidate, which sorts last: the head keeps all
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

std::vector<PlanOfLayer> MakePlans(const AdviseRun& run, const std::vector<Candidate>& candidates,
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
