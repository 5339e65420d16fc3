// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/study/eviction/policy.h"

namespace kv::eviction {

// One policy over one layer, which follows a given schedule.
struct PlanJob {
  const PolicyInfo* policy = nullptr;
  const PolicyOptions* options = nullptr;
  const LayerSchedule* schedule = nullptr;
};

// Replays policies over one layer. At each eviction a policy keeps as many tokens as its schedule
// says. Returns plans in the order of the jobs; they are the same for any number of threads.
std::vector<LayerPlan> PlanLayer(const LayerAttention& attention, uint64_t prompt,
                                 std::span<const PlanJob> jobs, ThreadPool& pool);

}  // namespace kv::eviction
