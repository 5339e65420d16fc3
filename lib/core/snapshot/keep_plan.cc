// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/keep_plan.h"

#include <algorithm>

#include "lib/core/base/error.h"

namespace kv {

uint64_t KeptTokens(const KeepPlan& plan) {
  uint64_t tokens = 0;
  for (const KeepRange& range : plan) tokens += range.count;
  return tokens;
}

bool Contains(const KeepPlan& plan, uint32_t token) {
  const auto after =
      std::upper_bound(plan.begin(), plan.end(), token,
                       [](uint32_t value, const KeepRange& range) { return value < range.begin; });
  return after != plan.begin() && token < std::prev(after)->end();
}

bool IsApplicable(const KeepPlan& plan, uint64_t length) {
  uint64_t previous_end = 0;
  for (const KeepRange& range : plan) {
    const uint64_t end = uint64_t{range.begin} + range.count;
    if (range.count == 0 || range.begin < previous_end || end > length) return false;
    previous_end = end;
  }
  return true;
}

void Append(KeepPlan& plan, KeepRange range) {
  if (range.count == 0) return;
  if (!plan.empty() && plan.back().end() == range.begin) {
    plan.back().count += range.count;
  } else {
    plan.push_back(range);
  }
}

KeepPlan PlanOf(std::span<const uint32_t> sorted_tokens) {
  KeepPlan plan;
  for (const uint32_t token : sorted_tokens) Append(plan, {token, 1});
  return plan;
}

std::vector<uint32_t> TokensOf(const KeepPlan& plan) {
  std::vector<uint32_t> tokens;
  tokens.reserve(KeptTokens(plan));
  for (const KeepRange& range : plan) {
    for (uint32_t i = 0; i < range.count; ++i) tokens.push_back(range.begin + i);
  }
  return tokens;
}

KeepPlan Select(const KeepPlan& positions, const KeepPlan& kept) {
  KeepPlan result;
  size_t piece = 0;
  uint64_t piece_begin = 0;  // index of the piece's first token in the cache
  for (const KeepRange& range : kept) {
    for (uint32_t done = 0; done < range.count;) {
      const uint64_t index = uint64_t{range.begin} + done;
      while (piece < positions.size() && index >= piece_begin + positions[piece].count) {
        piece_begin += positions[piece++].count;
      }
      KV_ASSERT(piece < positions.size());
      const auto skip = static_cast<uint32_t>(index - piece_begin);
      const uint32_t count = std::min(range.count - done, positions[piece].count - skip);
      Append(result, {positions[piece].begin + skip, count});
      done += count;
    }
  }
  return result;
}

}  // namespace kv
