// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/study/eviction/policy.h"

namespace kv::eviction {

// One rule over one layer, held to its schedule.
struct PlanJob {
  const PolicyInfo* policy = nullptr;
  const PolicyOptions* options = nullptr;
  const LayerSchedule* schedule = nullptr;
};

// Replays rules over one layer: at each eviction they keep as many tokens as their schedules say.
// Plans in the order of the jobs; deterministic for any number of threads.
std::vector<LayerPlan> PlanLayer(const LayerAttention& attention, uint64_t prompt,
                                 std::span<const PlanJob> jobs, ThreadPool& pool);

}  // namespace kv::eviction
