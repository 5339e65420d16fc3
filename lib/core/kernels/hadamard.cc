// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/hadamard.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/hadamard.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Butterflies in the order of the reference: every element sees the same additions on each target.
void Hadamard(float* values, size_t count, uint32_t size) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, 1.0f / std::sqrt(static_cast<float>(size)));
  for (size_t half = 1; half < size; half *= 2) {
    for (size_t block = 0; block < count; block += 2 * half) {
      float* low = values + block;
      float* high = low + half;
      size_t i = 0;
      for (; i + lanes <= half; i += lanes) {
        const auto a = hn::LoadU(d, low + i);
        const auto b = hn::LoadU(d, high + i);
        hn::StoreU(hn::Add(a, b), d, low + i);
        hn::StoreU(hn::Sub(a, b), d, high + i);
      }
      for (; i < half; ++i) {
        const float a = low[i], b = high[i];
        low[i] = a + b;
        high[i] = a - b;
      }
    }
  }
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, values + i), scale), d, values + i);
  }
  for (; i < count; ++i) values[i] *= hn::GetLane(scale);
}

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Hadamard);

void Hadamard(float* values, size_t count, uint32_t size) noexcept {
  HWY_DYNAMIC_DISPATCH(Hadamard)(values, count, size);
}

namespace ref {

void Hadamard(float* values, size_t count, uint32_t size) noexcept {
  for (size_t half = 1; half < size; half *= 2) {
    for (size_t low = 0; low < count; ++low) {
      if (low & half) continue;
      const float a = values[low], b = values[low + half];
      values[low] = a + b;
      values[low + half] = a - b;
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (size_t i = 0; i < count; ++i) values[i] *= scale;
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
