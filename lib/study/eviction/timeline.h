// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// When a layer evicts and how much, and which positions are left at any time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/snapshot/rope.h"
#include "lib/study/eviction/block_choice.h"

namespace kv::eviction {

// When one eviction of one layer happens, and how many tokens it drops. `token` is the position
// whose call decided: its query is the last that sees the evicted keys.
struct Eviction {
  uint64_t token = 0;
  uint64_t length_before = 0;  // tokens in the cache, including `token`
  uint64_t kept = 0;

  bool operator==(const Eviction&) const = default;
};

// When a layer evicts, and how many tokens. Neither depends on scores. The schedule is therefore
// known even for layers that a trace lacks, and other policies can follow the same one.
struct LayerSchedule {
  uint32_t layer = 0;
  bool in_range = false;
  std::vector<Eviction> evictions;
  uint64_t triggers = 0;         // decisions, including those that evicted nothing
  uint64_t floor_dominated = 0;  // decisions that kept everything because of the floor
  // True if evictions take effect at the end of their step, as on a budget, rather than at the
  // beginning of the next one, as an engine's plans do.
  bool within_step = false;

  // Counts the evictions that take keys from some query at a position before `end`.
  uint64_t evictions_in_effect(uint64_t end) const;
  // Turns it into the schedule of a layer that never evicts.
  void Clear() {
    evictions.clear();
    triggers = floor_dominated = 0;
  }
};

// Walks along the positions and returns how many tokens a layer holds at each.
class LengthWalk {
 public:
  explicit LengthWalk(const LayerSchedule& schedule) : schedule_(schedule) {}
  // Positions must not decrease from call to call.
  uint64_t At(uint64_t position);

 private:
  const LayerSchedule& schedule_;
  size_t next_ = 0;
};

// The positions that a layer keeps, stored as the moment at which each is evicted. A unit is the
// whole layer or one of its kv heads. All units evict at the same moments.
class LayerPlan {
 public:
  uint32_t layer = 0;
  uint32_t units = 1;
  std::vector<Eviction> events;
  // Set if positions count within the cache: this rotation then moves keys to their places there.
  std::optional<Rope> turned_by;

  static constexpr uint32_t kStays = UINT32_MAX;

  // Returns the last position whose query sees the key at `position`.
  uint32_t last_seen(uint32_t unit, uint64_t position) const;
  // Records that `position` is evicted at the event of this token.
  void Drop(uint32_t unit, uint64_t position, uint64_t token);
  // Adds an event. After it the units hold only `held`, of the positions up to the event's token.
  void Keep(const Eviction& event, std::span<const KeepPlan> held);
  // Returns the positions before `position` that a unit holds once all plans made before `position`
  // have been applied.
  KeepPlan HeldBefore(uint32_t unit, uint64_t position) const;

 private:
  // [unit][position]; positions beyond its size are never evicted
  std::vector<std::vector<uint32_t>> last_seen_;
};

}  // namespace kv::eviction
