// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kv::mnn {

struct TokenRange {
  uint64_t begin = 0, end = 0;  // begin < end
  bool operator==(const TokenRange&) const = default;
};

// Tokens [begin, end) as update `update` wrote them.
struct JoinedRange {
  size_t update = 0;
  uint64_t begin = 0, end = 0;
  bool operator==(const JoinedRange&) const = default;
};

struct Joined {
  std::vector<JoinedRange> ranges;   // ascending, disjoint
  std::vector<TokenRange> gaps;      // positions inside the whole that no update holds
  std::vector<TokenRange> overlaps;  // positions that more than one update holds
};

// Joins the updates of one layer by position. Where several hold a position, the one that begins
// later wins: an engine appends, so it can only begin inside an earlier update after its cache was
// cut back to that length. Of two that begin together the longer one wins.
Joined JoinByPosition(std::span<const TokenRange> updates);

}  // namespace kv::mnn
