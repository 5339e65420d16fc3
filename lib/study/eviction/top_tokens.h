// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/snapshot/keep_plan.h"

namespace kv::eviction {

using Scores = std::vector<double>;

// The `keep` tokens with the highest scores among the first scores.size() - last, and the `last`
// ones, which are always kept. Equal scores keep the lower index; NaN is dropped first.
KeepPlan TopTokens(std::span<const double> scores, uint64_t keep, uint64_t last);

// Scores that follow the tokens they belong to when a cache is compacted.
void CompactScores(const KeepPlan& plan, Scores& scores);

}  // namespace kv::eviction
