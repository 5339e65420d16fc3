// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// A part of a snapshot, as the options --layers, --tokens and --kv select it.
struct Selection {
  std::optional<std::vector<uint32_t>> layers = {};  // sorted layer indices; nullopt: all
  std::vector<TokenRange> tokens = {};               // sorted, disjoint, none empty; empty: all
  bool keys = true, values = true;

  bool is_all() const { return !layers && tokens.empty() && keys && values; }
  bool HasLayer(uint32_t layer) const;
  // Returns true if any of the tokens [begin, end) is selected.
  bool HasTokens(uint64_t begin, uint64_t end) const;
};

// Returns tokens [begin, begin + count) of a tensor as views into the same bytes.
KvTensor SliceTokens(const KvTensor& tensor, uint64_t begin, uint64_t count);

// Keeps the selected layers and tokens, with their cells and ids; K and V both stay. Throws kUsage
// if a layer does not exist or the tokens are beyond every layer.
Snapshot Select(Snapshot snapshot, const Selection& selection);

// Keeps the cells of one sequence, which then belong to no other. Token ids are dropped unless all
// cells stay, because their sequence is not recorded. Throws kUsage if no cell belongs to the
// sequence, kUnsupportedLayout if the cells of some layer are not recorded.
Snapshot SelectSequence(Snapshot snapshot, int32_t sequence);

// `count` consecutive tokens from `begin` on.
struct KeepRange {
  uint32_t begin = 0, count = 0;
  uint32_t end() const { return begin + count; }
  bool operator==(const KeepRange&) const = default;
};

// Kept tokens: ascending, disjoint, never empty, never adjacent. They are indices into the current
// cache, or positions of the uncompacted sequence; the variable's name tells which.
using KeepPlan = std::vector<KeepRange>;

uint64_t KeptTokens(const KeepPlan& plan);

// Returns true if the ranges are ascending, disjoint, non-empty and inside [0, length), which MNN
// requires before it moves a byte. Adjacent ranges are allowed here.
bool IsApplicable(const KeepPlan& plan, uint64_t length);

// Returns the ranges of a sorted list of distinct tokens.
KeepPlan MakeKeepPlan(std::span<const uint32_t> sorted_tokens);
std::vector<uint32_t> ListTokens(const KeepPlan& plan);

// Appends a range, joining it to the last one if they touch.
void Append(KeepPlan& plan, KeepRange range);

// Returns the positions that remain when `kept` (indices into the list of `positions`) is applied.
KeepPlan Select(const KeepPlan& positions, const KeepPlan& kept);

}  // namespace kv
