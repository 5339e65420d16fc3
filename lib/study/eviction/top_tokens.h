// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/snapshot/keep_plan.h"

namespace kv::eviction {

using Scores = std::vector<double>;

// Returns `keep` tokens: the `last` ones in any case, and those with the highest scores among the
// others. Of equal scores the lower index stays; NaN goes first.
KeepPlan TopTokens(std::span<const double> scores, uint64_t keep, uint64_t last);

// Moves the scores of kept tokens to the places that the tokens have in the compacted cache.
void CompactScores(const KeepPlan& plan, Scores& scores);

}  // namespace kv::eviction
