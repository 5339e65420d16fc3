// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/eviction/policy.h"
#include "lib/study/eviction/timeline.h"

namespace kv::eviction {

// How much of a layer may stay, in tokens per kv head, sinks and recent tokens included.
struct KeepBudget {
  std::optional<uint64_t> tokens;  // as many at every length, or
  double share = 1;                // a share of all tokens seen, rounded down
  bool as_ratio = false;           // the share was asked for as the ratio 1 / share

  // At least 1, at most `seen`.
  uint64_t At(uint64_t seen) const;
  // "0.25", "512t" or "4x", as it was asked for.
  std::string Text() const;
};

// The steps at which a budget is held: after the rows at positions [first, end).
struct BudgetSteps {
  uint64_t first = 0, end = 0;
};

// What a rule keeps of one layer on a budget: after each step as many tokens as the budget says for
// the tokens seen by then. "block" keeps whole blocks above its floor: less than a block more, and
// not less than the floor. "pyramid" spreads the budget at its first eviction; its sum over the
// layers stays. Rules of the prompt's end grow after it if the options say so.
LayerSchedule BudgetSchedule(const PolicyInfo& policy, const PolicyOptions& options,
                             const KeepBudget& budget, const BudgetSteps& steps,
                             const LayerPlace& place);

// A common schedule as one rule follows it: "full" has none, "pyramid" takes its share of each
// eviction.
LayerSchedule CommonSchedule(const PolicyInfo& policy, const PolicyOptions& options,
                             const LayerPlace& place, const LayerSchedule& common);

// What "pyramid" keeps in a layer of `length` tokens when `keep` is the mean of all layers; nothing
// where the paper's conditions fail and every layer keeps the mean.
std::optional<uint64_t> PyramidBudget(const PaperParameters& paper, const LayerPlace& place,
                                      uint64_t keep, uint64_t length);

// The least tokens that "block" can be held to: sink blocks and recent tokens.
uint64_t BlockFloor(const BlockConfig& sanitised);

// The position at whose end the first eviction may come: the prompt's last, or the first one later
// at which the trace has rows and the cache is as long as the trigger says.
uint64_t FirstEviction(const BlockConfig& sanitised, uint64_t first_row, uint64_t prompt);

// The parameters of the engine fitted to a trace that ends at `end` with at least `least` tokens
// kept; those named in `chosen` stay as they are. Adds the names of the others to `followed`.
BlockConfig FollowTrace(const BlockConfig& config, const std::set<std::string, std::less<>>& chosen,
                        uint64_t least, std::vector<std::string>& followed);

// Throws kUsage when a rule cannot be held to the budget, not even to its last and largest: sinks
// and recent tokens that it always keeps are more.
void RequireFloor(std::string_view policy, const BlockConfig& sanitised,
                  const PaperParameters& paper, const KeepBudget& budget, uint64_t end);

}  // namespace kv::eviction
