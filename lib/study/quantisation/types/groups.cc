// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cmath>

#include "lib/study/quantisation/types/codes.h"

namespace kv::quant {
namespace {

constexpr double kSparseShare = 0.005;  // on each side

float RoundIf(Arithmetic arithmetic, float value) {
  return arithmetic == Arithmetic::kHalf ? ToHalf(value) : value;
}

// The quantile of sorted values, between neighbours.
double Quantile(const std::vector<float>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double low = sorted[below], high = sorted[above];
  return low + (high - low) * (at - static_cast<double>(below));
}

}  // namespace

GroupCodes StoreKivi(const float* values, size_t count, size_t step, uint32_t bits, float* out) {
  const auto top = static_cast<float>((1u << bits) - 1);
  const Range range = RangeOf(values, count, step);
  GroupCodes group{std::vector<uint8_t>(count), ToHalf(ToHalf(range.most - range.least) / top),
                   range.least};
  for (size_t i = 0; i < count; ++i) {
    float code = 0;
    if (group.scale != 0) {
      const float scaled = ToHalf(ToHalf(values[i * step] - group.shift) / group.scale);
      code = std::nearbyint(std::clamp(scaled, 0.0f, top));
    }
    group.codes[i] = static_cast<uint8_t>(IntegerCode(code));
    out[i * step] = ToHalf(ToHalf(code * group.scale) + group.shift);
  }
  return group;
}

GroupCodes StoreQuanto(const float* values, size_t count, size_t step, uint32_t bits,
                       Arithmetic arithmetic, float* out) {
  const auto round = [&](float value) { return RoundIf(arithmetic, value); };
  const auto top = static_cast<float>((1u << bits) - 1);
  const Range range = RangeOf(values, count, step);
  GroupCodes group{std::vector<uint8_t>(count), round(round(range.most - range.least) / top),
                   -range.least};
  for (size_t i = 0; i < count; ++i) {
    if (group.scale == 0) {
      out[i * step] = range.least;
      continue;
    }
    const float scaled = round(round(values[i * step] + group.shift) / group.scale);
    const float code = std::clamp(std::nearbyint(scaled), 0.0f, top);
    group.codes[i] = static_cast<uint8_t>(IntegerCode(code));
    out[i * step] = round(round(code * group.scale) - group.shift);
  }
  return group;
}

uint64_t StoreKvQuant(const float* values, size_t count, size_t step, uint32_t bits, bool sparse,
                      float* out) {
  float low = -INFINITY, high = INFINITY;  // outliers are at them or beyond
  if (sparse) {
    std::vector<float> sorted;  // without NaN, which has no order
    for (size_t i = 0; i < count; ++i) {
      if (!std::isnan(values[i * step])) sorted.push_back(values[i * step]);
    }
    std::sort(sorted.begin(), sorted.end());
    if (!sorted.empty()) {
      low = static_cast<float>(Quantile(sorted, kSparseShare));
      high = static_cast<float>(Quantile(sorted, 1 - kSparseShare));
    }
  }
  const auto is_outlier = [&](float value) { return value <= low || value >= high; };
  Range range{INFINITY, -INFINITY};
  uint64_t outliers = 0;
  for (size_t i = 0; i < count; ++i) {
    const float value = values[i * step];
    if (is_outlier(value)) {
      ++outliers;
      continue;
    }
    range.least = std::min(range.least, value);
    range.most = std::max(range.most, value);
  }
  const auto top = static_cast<float>((1u << bits) - 1);
  const float factor = top / (range.most - range.least);
  const float offset = std::clamp(std::nearbyint(range.least * factor), -top, 0.0f);
  for (size_t i = 0; i < count; ++i) {
    const float value = values[i * step];
    const float code = std::clamp(std::nearbyint(factor * value - offset), 0.0f, top);
    const float back = (code + offset) / factor;
    out[i * step] = is_outlier(value) ? value : std::isnan(back) ? 0.0f : back;
  }
  return outliers;
}

}  // namespace kv::quant
