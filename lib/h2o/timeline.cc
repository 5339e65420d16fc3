// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/h2o/timeline.h"

#include <algorithm>

namespace kv::h2o {

uint64_t LayerSchedule::LengthAt(uint64_t position) const {
  uint64_t length = position + 1;
  for (const Eviction& eviction : evictions) {
    if (eviction.token >= position) break;
    length = eviction.kept + (position - eviction.token);
  }
  return length;
}

KeepPlan LayerPlan::HeldBefore(uint32_t unit, uint64_t position) const {
  KeepPlan held;
  uint64_t next = 0;
  for (const KeepEvent& event : events) {
    if (event.eviction.token >= position) break;
    held = event.kept[unit];
    next = event.eviction.token + 1;
  }
  if (next < position) {
    Append(held, {static_cast<uint32_t>(next), static_cast<uint32_t>(position - next)});
  }
  return held;
}

LayerSchedule ExactSchedule(const Config& config, uint32_t layer, uint32_t layers, uint64_t prompt,
                            uint64_t end) {
  LayerSchedule schedule;
  schedule.layer = layer;
  schedule.in_range = EvictedLayers(config, layers).Contains(layer);
  if (!schedule.in_range) return schedule;
  const auto interval = static_cast<uint64_t>(config.update_interval);
  uint64_t length = prompt, since_trigger = 0;
  for (uint64_t token = prompt; token < end; ++token) {
    ++length;
    ++since_trigger;
    if (length < static_cast<uint64_t>(config.trigger_min_tokens) || since_trigger < interval) {
      continue;
    }
    since_trigger = 0;
    ++schedule.triggers;
    const Budget budget = BudgetOf(config, length);
    if (budget.floor_dominates) {
      ++schedule.floor_dominated;
    } else if (budget.quantised < length) {
      schedule.evictions.push_back({token, length, budget.quantised});
      length = budget.quantised;
    }
  }
  return schedule;
}

}  // namespace kv::h2o
