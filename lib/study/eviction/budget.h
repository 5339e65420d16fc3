// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Budgets of tokens, and the schedules that policies follow on them.
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

// The steps at which a budget applies: after the rows at positions [first, end).
struct BudgetSteps {
  uint64_t first = 0, end = 0;
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
