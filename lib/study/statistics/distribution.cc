// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/statistics/distribution.h"

#include <algorithm>
#include <cmath>

#include "lib/study/statistics/quantile.h"

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

}  // namespace kv
