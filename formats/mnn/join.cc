// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/mnn/join.h"

#include <algorithm>
#include <numeric>

namespace kv::mnn {
namespace {

void Append(std::vector<TokenRange>& ranges, uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  if (!ranges.empty() && ranges.back().end >= begin) {
    ranges.back().end = std::max(ranges.back().end, end);
  } else {
    ranges.push_back({begin, end});
  }
}

}  // namespace

Joined JoinByPosition(std::span<const TokenRange> updates) {
  std::vector<size_t> order(updates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return updates[a].begin != updates[b].begin ? updates[a].begin < updates[b].begin
                                                : updates[a].end < updates[b].end;
  });

  Joined joined;
  std::vector<size_t> open;  // updates that reach past the cursor, the latest begun on top
  uint64_t cursor = 0;
  uint64_t furthest = 0;  // end of what any update so far holds
  // Gives the positions up to `limit` to the updates that are open.
  const auto emit_until = [&](uint64_t limit) {
    while (!open.empty() && cursor < limit) {
      const size_t top = open.back();
      const uint64_t end = std::min(updates[top].end, limit);
      if (end > cursor) {
        joined.ranges.push_back({top, cursor, end});
        cursor = end;
      }
      if (updates[top].end <= cursor) open.pop_back();
    }
  };
  for (const size_t i : order) {
    const TokenRange& update = updates[i];
    emit_until(update.begin);
    if (furthest != 0) {  // not the first
      if (update.begin > furthest) Append(joined.gaps, furthest, update.begin);
      Append(joined.overlaps, update.begin, std::min(update.end, furthest));
    }
    cursor = update.begin;
    furthest = std::max(furthest, update.end);
    open.push_back(i);
  }
  emit_until(furthest);
  return joined;
}

}  // namespace kv::mnn
