// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/statistics/distribution.h"

#include <algorithm>
#include <cmath>

namespace kv {

Distribution Describe(std::vector<double> values) {
  Distribution out;
  const auto kept =
      std::remove_if(values.begin(), values.end(), [](double value) { return std::isnan(value); });
  out.nans = static_cast<uint64_t>(values.end() - kept);
  values.erase(kept, values.end());
  out.count = values.size();
  if (values.empty()) return out;
  double sum = 0;
  for (double value : values) sum += value;
  out.mean = sum / static_cast<double>(values.size());
  std::sort(values.begin(), values.end());
  out.min = values.front();
  out.max = values.back();
  out.p1 = QuantileOfSorted(values, 0.01);
  out.p5 = QuantileOfSorted(values, 0.05);
  out.p50 = QuantileOfSorted(values, 0.50);
  out.p95 = QuantileOfSorted(values, 0.95);
  out.p99 = QuantileOfSorted(values, 0.99);
  return out;
}

const Fields<ValueSummary>& ValueSummaryFields() {
  static const Fields<ValueSummary> fields = {
      {"values", "Number of values", &ValueSummary::values},
      {"min", "Smallest finite value; null if there is none", &ValueSummary::min,
       Nullable(Heading("min", format::AsReal))},
      {"max", "Largest finite value; null if there is none", &ValueSummary::max,
       Nullable(Heading("max", format::AsReal))},
      {"mean", "Mean of the finite values; null if there is none", &ValueSummary::mean,
       Nullable(Heading("mean", format::AsNats))},
      {"standard_deviation",
       "Standard deviation of the finite values; null if there is none",
       &ValueSummary::standard_deviation,
       {.least = 0, .nullable = true, .column = "sd", .format = format::AsNats}},
      {"nan_count", "Values that are NaN", &ValueSummary::nan_count, Heading("NaN")},
      {"infinite_count", "Values that are infinite", &ValueSummary::infinite_count, Heading("Inf")},
      {"zero_count", "Values that are zero", &ValueSummary::zero_count}};
  return fields;
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
