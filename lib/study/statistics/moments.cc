// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/statistics/moments.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace kv {

nlohmann::ordered_json SummaryJson(const ValueSummary& summary) {
  return {{"values", summary.values},
          {"min", summary.min},
          {"max", summary.max},
          {"mean", summary.mean},
          {"standard_deviation", summary.standard_deviation},
          {"nan_count", summary.nan_count},
          {"infinite_count", summary.infinite_count},
          {"zero_count", summary.zero_count}};
}

void Moments::Add(double value, uint64_t count) {
  if (count == 0) return;
  summary_.values += count;
  if (std::isnan(value)) {
    summary_.nan_count += count;
    return;
  }
  if (std::isinf(value)) {
    summary_.infinite_count += count;
    return;
  }
  if (value == 0) summary_.zero_count += count;
  summary_.min = finite_ == 0 ? value : std::min(summary_.min, value);
  summary_.max = finite_ == 0 ? value : std::max(summary_.max, value);
  finite_ += count;
  const double weight = static_cast<double>(count), delta = value - summary_.mean;
  summary_.mean += delta * (weight / static_cast<double>(finite_));
  squares_ += weight * delta * (value - summary_.mean);
}

ValueSummary Moments::Finish() const {
  ValueSummary summary = summary_;
  if (finite_ == 0) summary.min = summary.max = summary.mean = NAN;
  summary.standard_deviation = std::sqrt(squares_ / static_cast<double>(finite_));
  return summary;
}

}  // namespace kv
