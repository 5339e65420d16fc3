// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace kv {

// Describes many values. Quantiles interpolate linearly between the two nearest ranks, as numpy's
// default does. NaNs are counted and otherwise left out; infinities stay in. All figures of no
// values are NaN, which JSON shows as null: a 0 would look like a perfect result.
struct Distribution {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  uint64_t count = 0;  // without NaNs
  uint64_t nans = 0;
  double mean = kNone, min = kNone, p1 = kNone, p5 = kNone, p50 = kNone, p95 = kNone, p99 = kNone,
         max = kNone;
};

// Mean without the NaNs of undefined values; NaN if no value is left.
class DefinedMean {
 public:
  void Add(double value) {
    if (std::isnan(value)) return;
    sum_ += value;
    ++count_;
  }
  double Get() const {
    return count_ == 0 ? Distribution::kNone : sum_ / static_cast<double>(count_);
  }

 private:
  double sum_ = 0;
  uint64_t count_ = 0;
};

// Sums run in the order given, so equal inputs give equal bits.
Distribution Describe(std::vector<double> values);

}  // namespace kv
