// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/top_tokens.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace kv::eviction {
namespace {

// How many of the worst are sought one by one, rather than by a partial sort.
constexpr size_t kFewDropped = 4;

// Whether token a stays rather than b.
struct Stays {
  std::span<const double> scores;
  bool operator()(uint32_t a, uint32_t b) const {
    const double x = scores[a], y = scores[b];
    if (std::isnan(x) || std::isnan(y)) {
      if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
      return a < b;
    }
    return x != y ? x > y : a < b;
  }
};

// All of `count` tokens but the `drop` worst.
KeepPlan WithoutWorst(size_t count, size_t drop, const Stays& stays) {
  std::vector<uint32_t> worst;
  while (worst.size() < drop) {
    std::optional<uint32_t> found;
    for (uint32_t i = 0; i < count; ++i) {
      if (found && !stays(*found, i)) continue;
      if (std::find(worst.begin(), worst.end(), i) == worst.end()) found = i;
    }
    worst.push_back(*found);
  }
  std::sort(worst.begin(), worst.end());
  KeepPlan plan;
  uint32_t next = 0;
  for (const uint32_t gone : worst) {
    Append(plan, {next, gone - next});
    next = gone + 1;
  }
  Append(plan, {next, static_cast<uint32_t>(count) - next});
  return plan;
}

}  // namespace

KeepPlan TopTokens(std::span<const double> scores, uint64_t keep, uint64_t last) {
  const uint64_t n = scores.size();
  keep = std::min(keep, n);
  last = std::min(last, keep);
  const Stays stays{scores};
  KeepPlan plan;
  if (n - keep <= kFewDropped) {
    plan = WithoutWorst(n - last, n - keep, stays);
  } else {
    std::vector<uint32_t> order(n - last);
    std::iota(order.begin(), order.end(), 0);
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(keep - last);
    std::nth_element(order.begin(), middle, order.end(), stays);
    order.resize(keep - last);
    std::sort(order.begin(), order.end());
    plan = PlanOf(order);
  }
  Append(plan, {static_cast<uint32_t>(n - last), static_cast<uint32_t>(last)});
  return plan;
}

void CompactScores(const KeepPlan& plan, std::vector<double>& scores) {
  size_t to = 0;
  for (const KeepRange& range : plan) {
    if (range.begin != to) {
      std::copy_n(scores.begin() + range.begin, range.count,
                  scores.begin() + static_cast<std::ptrdiff_t>(to));
    }
    to += range.count;
  }
  scores.resize(to);
}

}  // namespace kv::eviction
