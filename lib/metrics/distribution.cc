// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/metrics/distribution.h"

#include <algorithm>
#include <cmath>

namespace kv {
namespace {

double Quantile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = rank - static_cast<double>(below);
  // Equal neighbours may be infinite: no difference then.
  if (part == 0 || sorted[below] == sorted[above]) return sorted[below];
  return sorted[below] + (sorted[above] - sorted[below]) * part;
}

}  // namespace

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
  out.p1 = Quantile(values, 0.01);
  out.p5 = Quantile(values, 0.05);
  out.p50 = Quantile(values, 0.50);
  out.p95 = Quantile(values, 0.95);
  out.p99 = Quantile(values, 0.99);
  return out;
}

}  // namespace kv
