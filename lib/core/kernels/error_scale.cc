// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/error_scale.h"

#include <cmath>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/error_scale.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef KV_ERROR_SCALE_CONSTANTS
#define KV_ERROR_SCALE_CONSTANTS
namespace kv {
constexpr size_t kErrorLanes = 16;
constexpr float kMostError = 1e30f, kMostWeighted = 64;
}  // namespace kv
#endif

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kErrorLanes>;
constexpr size_t kFloats = hn::MaxLanes(DF());

void ErrorsT(const float* values, const float* expected, size_t count, float* errors) {
  const DF d;
  const auto most = hn::Set(d, kMostError);
  size_t i = 0;
  for (; i + kFloats <= count; i += kFloats) {
    const auto error = hn::Abs(hn::Sub(hn::LoadU(d, values + i), hn::LoadU(d, expected + i)));
    hn::StoreU(hn::IfThenElseZero(hn::Le(error, most), error), d, errors + i);
  }
  ref::AbsoluteErrors(values + i, expected + i, count - i, errors + i);
}

float MeanT(const float* errors, const float* weights, size_t count) {
  constexpr size_t kRegisters = kErrorLanes / kFloats;
  const DF d;
  const auto most = hn::Set(d, kMostWeighted);
  hn::Vec<DF> sums[kRegisters];
  for (size_t r = 0; r < kRegisters; ++r) sums[r] = hn::Zero(d);
  size_t i = 0;
  for (; i + kErrorLanes <= count; i += kErrorLanes) {
    for (size_t r = 0; r < kRegisters; ++r) {
      const size_t at = i + r * kFloats;
      const auto ratio = hn::Mul(hn::LoadU(d, errors + at), hn::LoadU(d, weights + at));
      sums[r] = hn::Add(sums[r], hn::IfThenElse(hn::Lt(ratio, most), ratio, most));
    }
  }
  float lanes[kErrorLanes];
  for (size_t r = 0; r < kRegisters; ++r) hn::StoreU(sums[r], d, lanes + r * kFloats);
  for (; i < count; ++i) {
    const float ratio = errors[i] * weights[i];
    lanes[i % kErrorLanes] += ratio < kMostWeighted ? ratio : kMostWeighted;
  }
  return std::accumulate(lanes, lanes + kErrorLanes, 0.0f) / static_cast<float>(count);
}

void AddT(const float* errors, float weight, size_t count, float* sums) {
  const DF d;
  const auto w = hn::Set(d, weight);
  size_t i = 0;
  for (; i + kFloats <= count; i += kFloats) {
    const auto more = hn::Mul(hn::LoadU(d, errors + i), w);
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), more), d, sums + i);
  }
  ref::AddWeighted(errors + i, weight, count - i, sums + i);
}

}  // namespace
}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(ErrorsT);
HWY_EXPORT(MeanT);
HWY_EXPORT(AddT);

void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept {
  HWY_DYNAMIC_DISPATCH(ErrorsT)(values, expected, count, errors);
}
float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(MeanT)(errors, weights, count);
}
void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(AddT)(errors, weight, count, sums);
}

namespace ref {

void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept {
  for (size_t i = 0; i < count; ++i) {
    const float error = std::fabs(values[i] - expected[i]);
    errors[i] = error <= kMostError ? error : 0.0f;
  }
}

float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept {
  float lanes[kErrorLanes] = {};
  for (size_t i = 0; i < count; ++i) {
    const float ratio = errors[i] * weights[i];
    lanes[i % kErrorLanes] += ratio < kMostWeighted ? ratio : kMostWeighted;
  }
  return std::accumulate(lanes, lanes + kErrorLanes, 0.0f) / static_cast<float>(count);
}

void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept {
  for (size_t i = 0; i < count; ++i) sums[i] += errors[i] * weight;
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
