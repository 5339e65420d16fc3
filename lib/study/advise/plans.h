// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <vector>

#include "lib/study/advise/candidates.h"
#include "lib/study/advise/mixture.h"
#include "lib/study/advise/run_of.h"
#include "lib/study/eviction/report.h"

namespace kv::advise {

// Replays candidates in one layer of a run; returns plans in their order.
std::vector<eviction::LayerPlan> PlanCandidates(const RunOf& run, size_t layer,
                                                std::span<const Candidate* const> candidates,
                                                uint64_t seed, ThreadPool& pool);

// The plan of one layer. Its kv heads may evict at moments of their own.
struct PlanOfLayer {
  eviction::LayerPlan plan;
  std::vector<std::vector<eviction::Eviction>> events;  // [unit of the plan]
};

// Replays one run on the candidates of a choice, which is one of the units of `measured`.
std::vector<PlanOfLayer> PlansOf(const RunOf& run, const std::vector<Candidate>& candidates,
                                 const Measured& measured, const Choice& choice, uint64_t seed,
                                 ThreadPool& pool);

// Visits the events of plans in the order of time, then of layers and heads.
void ForEachEvent(const std::vector<PlanOfLayer>& plans,
                  const std::function<void(const eviction::PlanEvent&)>& visit);

}  // namespace kv::advise
