// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/infinilm/value_stats.h"

#include <algorithm>
#include <cmath>

#include "lib/core/weights/weights.h"

namespace kv {

std::vector<double> ToDoubles(const TensorView& view) {
  std::vector<double> values(view.elements());
  if (view.dtype == DType::kF64) {
    const Bytes bytes = CopyContiguous(view);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  const Bytes bytes = RoundValues(view, DType::kF32);
  for (size_t i = 0; i < values.size(); ++i) values[i] = LoadLE<float>(bytes.data() + 4 * i);
  return values;
}

ValueStats StatsOfValues(const TensorView& view) {
  Moments moments;
  for (const double value : ToDoubles(view)) moments.Add(value);
  ValueStats stats{moments.Finish()};
  RoundingCounts f16, bf16;
  RoundValues(view, DType::kF16, &f16);
  RoundValues(view, DType::kBF16, &bf16);
  stats.f16_overflows = f16.overflowed;
  stats.f16_flushes = f16.flushed;
  stats.bf16_overflows = bf16.overflowed;
  return stats;
}

bool LooksUntrained(const ValueStats& weight, uint64_t in_features) {
  constexpr uint64_t kEnough = 64;
  if (weight.values < kEnough || weight.nan_count + weight.infinite_count > 0) return false;
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  // Rounding to bf16 may push the largest value out by half a percent.
  const bool inside = std::max(-weight.min, weight.max) <= bound * 1.005;
  const double uniform = bound / std::sqrt(3.0);
  const double slack = 3 / std::sqrt(static_cast<double>(weight.values));
  return inside && std::abs(weight.standard_deviation / uniform - 1) < 0.02 + slack;
}

}  // namespace kv
