// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The times and sizes of a layer's evictions, the positions that are left at any time, and the
// schedules that policies follow on a budget of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/snapshot/rope.h"
#include "lib/study/eviction/block_choice.h"
#include "lib/study/eviction/policy.h"

namespace kv::eviction {

// One eviction of one layer: its time, and how many tokens it drops. `token` is the position whose
// call decided: its query is the last that sees the evicted keys.
struct Eviction {
  uint64_t token = 0;
  uint64_t length_before = 0;  // tokens in the cache, including `token`
  uint64_t kept = 0;

  bool operator==(const Eviction&) const = default;
};

// When a layer evicts, and how many tokens it keeps each time. Neither depends on scores, so the
// schedule is known even for layers that a trace lacks, and other policies can follow the same one.
struct LayerSchedule {
  uint32_t layer = 0;
  bool in_range = false;
  std::vector<Eviction> evictions;
  uint64_t triggers = 0;         // decisions, including those that evicted nothing
  uint64_t floor_dominated = 0;  // decisions in which the floor kept everything
  // True if evictions take effect at the end of their step, as on a budget, rather than at the
  // beginning of the next one, as an engine's plans do.
  bool within_step = false;

  // Counts the evictions that take keys from some query at a position before `end`.
  uint64_t evictions_in_effect(uint64_t end) const;
  // Turns this into the schedule of a layer that never evicts.
  void Clear() {
    evictions.clear();
    triggers = floor_dominated = 0;
  }
};

// Returns how many tokens a layer holds at positions that are asked for in ascending order.
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
  std::optional<Rope> rotated_by;

  static constexpr uint32_t kStays = UINT32_MAX;

  // Returns the last position whose query sees the key at `position`.
  uint32_t last_seen(uint32_t unit, uint64_t position) const;
  // Returns last_seen of a unit's first positions; the others stay.
  std::span<const uint32_t> last_seen(uint32_t unit) const {
    return unit < last_seen_.size() ? std::span<const uint32_t>(last_seen_[unit])
                                    : std::span<const uint32_t>();
  }
  // Records that `position` is evicted at the event of this token.
  void Drop(uint32_t unit, uint64_t position, uint64_t token);
  // Adds an event. After it the units hold only `held`, of the positions up to the event's token.
  void Keep(const Eviction& event, std::span<const KeepPlan> held);
  // Returns the positions before `position` that a unit holds once all plans made before `position`
  // have been applied.
  KeepPlan HeldBefore(uint32_t unit, uint64_t position) const;

 private:
  // [unit][position]: last row that sees it; positions beyond its size are never evicted
  std::vector<std::vector<uint32_t>> last_seen_;
};

// The part of a layer that may be kept, in tokens per kv head, including sinks and recent tokens.
struct KeepBudget {
  std::optional<uint64_t> tokens;  // this many at every length; if empty, a share:
  double share = 1;                // this share of all tokens seen, rounded down
  bool as_ratio = false;           // true if the user gave the share as the ratio 1 / share

  // Returns the budget after `seen` tokens: at least 1, at most `seen`.
  uint64_t At(uint64_t seen) const;
  // Returns "0.25", "512t" or "4x", in the form that the user gave.
  std::string Text() const;
};

// The steps at which a budget applies: after every stride-th row of positions [first, end), counted
// from the last.
struct BudgetSteps {
  uint64_t first = 0, end = 0, stride = 1;

  // Returns the first such step at or after `token`.
  uint64_t From(uint64_t token) const {
    return token < end ? token + (end - 1 - token) % stride : token;
  }
};

// Returns how many tokens a policy keeps of one layer on a budget: after each step as many as the
// budget allows for the tokens seen by then. "block" keeps whole blocks above its floor, hence up
// to one block more than the budget, and never less than the floor. "pyramid" distributes the
// budget over the layers at its first eviction; their sum stays the same. Policies that compress
// once, at the end of the prompt, let the cache grow after it if the options say so.
LayerSchedule BudgetSchedule(const PolicyInfo& policy, const PolicyOptions& options,
                             const KeepBudget& budget, const BudgetSteps& steps,
                             const LayerPlace& place);

// Returns how one policy follows a common schedule: "full" evicts nothing, "pyramid" takes the
// layer's share of each eviction.
LayerSchedule CommonSchedule(const PolicyInfo& policy, const PolicyOptions& options,
                             const LayerPlace& place, const LayerSchedule& common);

// Returns how many tokens "pyramid" keeps in a layer of `length` tokens if the mean of all layers
// is `keep`. Returns nothing if the paper's conditions fail, so that every layer keeps the mean.
std::optional<uint64_t> PyramidBudget(const PaperParameters& paper, const LayerPlace& place,
                                      uint64_t keep, uint64_t length);

// Returns the smallest budget that "block" can meet: sink blocks and recent tokens.
uint64_t BlockFloor(const BlockConfig& sanitised);

// Returns the position after which the first eviction may come: the last one of the prompt, or the
// first later one at which the trace has rows and the cache has reached the length of the trigger.
uint64_t FirstEviction(const BlockConfig& sanitised, uint64_t first_row, uint64_t prompt);

// Fits the parameters of the block rule to a trace in which the smallest budget is `least` tokens.
// Parameters named in `chosen`, as BlockConfig names them, do not change. Adds the names of the
// others to `followed`.
BlockConfig FollowTrace(const BlockConfig& config, const std::set<std::string, std::less<>>& chosen,
                        uint64_t least, std::vector<std::string>& followed);

// Throws kUsage if the sinks and recent tokens that a policy always keeps exceed the budget even at
// `end`, where it is largest.
void RequireFloor(const PolicyInfo& policy, const BlockConfig& sanitised,
                  const PaperParameters& paper, const KeepBudget& budget, uint64_t end);

}  // namespace kv::eviction
