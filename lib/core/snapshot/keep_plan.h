// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv {

// `count` consecutive tokens from `begin` on.
struct KeepRange {
  uint32_t begin = 0, count = 0;
  uint32_t end() const { return begin + count; }
  bool operator==(const KeepRange&) const = default;
};

// Kept tokens: ascending, disjoint, never empty, never adjacent. They are indices into the current
// cache, or positions of the uncompacted sequence; the name of the variable tells which.
using KeepPlan = std::vector<KeepRange>;

uint64_t KeptTokens(const KeepPlan& plan);
bool Contains(const KeepPlan& plan, uint32_t token);

// Returns true if the ranges are ascending, disjoint, non-empty and inside [0, length), which the
// engine requires before it moves a byte. Adjacent ranges are allowed here.
bool IsApplicable(const KeepPlan& plan, uint64_t length);

// Returns the ranges of a sorted list of distinct tokens.
KeepPlan PlanOf(std::span<const uint32_t> sorted_tokens);
std::vector<uint32_t> TokensOf(const KeepPlan& plan);

// Appends a range, joining it to the last one if they touch.
void Append(KeepPlan& plan, KeepRange range);

// Returns the positions that remain when `kept` (indices into the list of `positions`) is applied.
KeepPlan Select(const KeepPlan& positions, const KeepPlan& kept);

}  // namespace kv
