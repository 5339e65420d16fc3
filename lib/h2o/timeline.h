// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/h2o/decision.h"

namespace kv::h2o {

// One eviction of one layer, as to time and size. `token` is the position whose call decided; the
// plan takes effect before the next one.
struct Eviction {
  uint64_t token = 0;
  uint64_t length_before = 0;  // tokens in the cache, `token` included
  uint64_t kept = 0;
};

// When a layer evicts and how much. Neither depends on scores, so it is known for layers that a
// trace lacks, and other policies can be held to the same schedule.
struct LayerSchedule {
  uint32_t layer = 0;
  bool in_range = false;
  std::vector<Eviction> evictions;
  uint64_t triggers = 0;         // decisions taken, the fruitless ones included
  uint64_t floor_dominated = 0;  // of these: kept everything because the floor reached the target

  // Tokens in the cache when the query at `position` attends.
  uint64_t LengthAt(uint64_t position) const;
};

// What stays: positions, one list per unit. A unit is the layer, or each of its kv heads.
struct KeepEvent {
  Eviction eviction;
  std::vector<KeepPlan> kept;
};

struct LayerPlan {
  uint32_t layer = 0;
  uint32_t units = 1;
  std::vector<KeepEvent> events;

  // Positions that a unit holds after all plans made before `position` have been applied, tokens up
  // to and without `position` included.
  KeepPlan HeldBefore(uint32_t unit, uint64_t position) const;
};

// The intended clock: per layer, in tokens. Token `prompt` is the first decode step.
LayerSchedule ExactSchedule(const Config& sanitised, uint32_t layer, uint32_t layers,
                            uint64_t prompt, uint64_t end);

}  // namespace kv::h2o
