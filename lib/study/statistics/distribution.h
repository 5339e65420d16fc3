// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

namespace kv {

// Describes many values. Quantiles interpolate linearly between the two nearest ranks, as numpy's
// default does. NaNs are counted and otherwise left out; infinities stay in.
struct Distribution {
  uint64_t count = 0;  // without NaNs
  uint64_t nans = 0;
  double mean = 0, min = 0, p1 = 0, p5 = 0, p50 = 0, p95 = 0, p99 = 0, max = 0;
};

// Without values, all figures are zero. Sums run in the order given, so equal inputs give equal
// bits.
Distribution Describe(std::vector<double> values);

}  // namespace kv
