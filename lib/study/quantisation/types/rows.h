// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "lib/core/base/half.h"

// What the quantisers share; for them alone.
namespace kv::quant {

inline float ToHalf(float value) { return F16ToF32(F32ToF16(value)); }

struct Range {
  float least = 0, most = 0;
};

// Of values that lie `step` apart.
inline Range RangeOf(const float* values, size_t count, size_t step = 1) {
  Range range{values[0], values[0]};
  for (size_t i = 1; i < count; ++i) {
    range.least = std::min(range.least, values[i * step]);
    range.most = std::max(range.most, values[i * step]);
  }
  return range;
}

inline float LargestMagnitude(std::span<const float> values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::fabs(value));
  return most;
}

// An integer code that was computed in float; 0 for a NaN, which values that are not finite give.
inline uint32_t IntegerCode(float code) {
  return std::isnan(code) ? 0 : static_cast<uint32_t>(code);
}

// Rounds halves away from zero, by adding 0.5 and cutting, as several engines do.
inline float RoundByHalf(float value) {
  return std::trunc(value < 0 ? value - 0.5f : value + 0.5f);
}

}  // namespace kv::quant
