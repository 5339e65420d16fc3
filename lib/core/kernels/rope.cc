// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void RotatePairs(float* values, size_t pairs, RopePairs style, const double* cosines,
                 const double* sines) {
  ref::RotatePairs(values, pairs, style, cosines, sines);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

void RotatePairs(float* values, size_t pairs, RopePairs style, const double* cosines,
                 const double* sines) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;  // as many floats as a vector has doubles
  const size_t lanes = hn::Lanes(d);
  const bool halves = style == RopePairs::kHalves;
  size_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    hn::Vec<decltype(df)> low, high;
    if (halves) {
      low = hn::LoadU(df, values + i);
      high = hn::LoadU(df, values + pairs + i);
    } else {
      hn::LoadInterleaved2(df, values + 2 * i, low, high);
    }
    const auto x = hn::PromoteTo(d, low), y = hn::PromoteTo(d, high);
    const auto c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    low = hn::DemoteTo(df, hn::Sub(hn::Mul(x, c), hn::Mul(y, s)));
    high = hn::DemoteTo(df, hn::Add(hn::Mul(y, c), hn::Mul(x, s)));
    if (halves) {
      hn::StoreU(low, df, values + i);
      hn::StoreU(high, df, values + pairs + i);
    } else {
      hn::StoreInterleaved2(low, high, df, values + 2 * i);
    }
  }
  for (; i < pairs; ++i) {
    float& a = values[halves ? i : 2 * i];
    float& b = values[halves ? pairs + i : 2 * i + 1];
    const double x = a, y = b;
    a = static_cast<float>(x * cosines[i] - y * sines[i]);
    b = static_cast<float>(y * cosines[i] + x * sines[i]);
  }
}

#endif

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(RotatePairs);

void RotatePairs(float* values, size_t pairs, RopePairs style, const double* cosines,
                 const double* sines) noexcept {
  HWY_DYNAMIC_DISPATCH(RotatePairs)(values, pairs, style, cosines, sines);
}

namespace ref {

void RotatePairs(float* values, size_t pairs, RopePairs style, const double* cosines,
                 const double* sines) noexcept {
  for (size_t i = 0; i < pairs; ++i) {
    float& a = values[style == RopePairs::kHalves ? i : 2 * i];
    float& b = values[style == RopePairs::kHalves ? pairs + i : 2 * i + 1];
    const double x = a, y = b;
    a = static_cast<float>(x * cosines[i] - y * sines[i]);
    b = static_cast<float>(y * cosines[i] + x * sines[i]);
  }
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
