// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/snapshot/rope.h"
#include "lib/study/eviction/block_choice.h"

namespace kv::eviction {

// One eviction of one layer, as to time and size. `token` is the position whose call decided: the
// last query that still sees what goes.
struct Eviction {
  uint64_t token = 0;
  uint64_t length_before = 0;  // tokens in the cache, `token` included
  uint64_t kept = 0;

  bool operator==(const Eviction&) const = default;
};

// When a layer evicts and how much. Neither depends on scores, so it is known for layers that a
// trace lacks, and other policies can be held to the same schedule.
struct LayerSchedule {
  uint32_t layer = 0;
  bool in_range = false;
  std::vector<Eviction> evictions;
  uint64_t triggers = 0;         // decisions taken, the fruitless ones included
  uint64_t floor_dominated = 0;  // of these: kept everything because the floor reached the target
  // A budget is met when its step is over; an engine's plan only when the next one begins.
  bool within_step = false;

  // Evictions that a query of a position before `end` is the poorer for.
  uint64_t evictions_in_effect(uint64_t end) const;
};

// Tokens that a layer holds, position after position.
class LengthWalk {
 public:
  explicit LengthWalk(const LayerSchedule& schedule) : schedule_(schedule) {}
  // Positions must not fall from call to call.
  uint64_t At(uint64_t position);

 private:
  const LayerSchedule& schedule_;
  size_t next_ = 0;
};

// What stays, by the moment at which each position goes. A unit is the layer, or each of its kv
// heads; all units evict at the same moments.
class LayerPlan {
 public:
  uint32_t layer = 0;
  uint32_t units = 1;
  std::vector<Eviction> events;
  // Positions count within the cache: keys are turned by this rotation to where they stand then.
  std::optional<blend::Rope> turned_by;

  static constexpr uint32_t kStays = UINT32_MAX;

  // The last position whose query sees the key at `position`.
  uint32_t last_seen(uint32_t unit, uint64_t position) const;
  // Notes that `position` goes at the event of this token.
  void Drop(uint32_t unit, uint64_t position, uint64_t token);
  // Adds an event after which the units hold these positions and no others up to the event's token.
  void Keep(const Eviction& event, std::span<const KeepPlan> held);
  // Positions that a unit holds after all plans made before `position` have been applied, tokens up
  // to and without `position` included.
  KeepPlan HeldBefore(uint32_t unit, uint64_t position) const;

 private:
  std::vector<std::vector<uint32_t>> last_seen_;  // [unit][position]; positions beyond stay
};

// The clock of the design: per layer, in tokens, the target relative to the cache as it is at each
// trigger. Token `prompt` is the first decode step.
LayerSchedule ExactSchedule(const BlockConfig& sanitised, uint32_t layer, uint32_t layers,
                            uint64_t prompt, uint64_t end);

}  // namespace kv::eviction
