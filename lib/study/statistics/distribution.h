// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "lib/fields/fields.h"

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

// Mean of the values that are not NaN; NaN if there are none.
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

// Sums run in the given order, so equal inputs give equal bits.
Distribution Describe(std::vector<double> values);

// Summarises many values. Range, mean and (population) deviation are over the finite ones, and NaN
// (null in JSON) if there are none.
struct ValueSummary {
  uint64_t values = 0, nan_count = 0, infinite_count = 0, zero_count = 0;
  double min = 0, max = 0, mean = 0, standard_deviation = 0;
};

const Fields<ValueSummary>& ValueSummaryFields();

// Accumulates values one by one without storing them (Welford's method). The results depend on the
// values and their order alone.
class Moments {
 public:
  // Adds a value that occurs `count` times.
  void Add(double value, uint64_t count = 1);
  ValueSummary Finish() const;

 private:
  ValueSummary summary_;
  uint64_t finite_ = 0;
  double squares_ = 0;
};

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
