// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace kv {

// Returns the quantile at `share`, in [0, 1], of ascending values: interpolated linearly between
// the two nearest ranks, as numpy's default does. Returns 0 if there are no values.
inline double QuantileOfSorted(std::span<const double> sorted, double share) {
  if (sorted.empty()) return 0;
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = rank - static_cast<double>(below);
  // Equal neighbours may be infinite, and their difference would be NaN.
  if (part == 0 || sorted[below] == sorted[above]) return sorted[below];
  return sorted[below] + (sorted[above] - sorted[below]) * part;
}

}  // namespace kv
