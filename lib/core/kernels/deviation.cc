// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/deviation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/deviation.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// number of sums, whatever the vector width: results must not depend on it
constexpr size_t kLanes = 16;

HWY_INLINE void AddElement(float full, float old, double& difference, double& norm) {
  const double a = full, e = a - old;
  difference += e * e;
  norm += a * a;
}

SquaredDeviation DeviationOfRow(const float* full, const float* old, size_t count) {
  // Several registers together hold the 16 sums; each takes every 16th element.
  using D = hn::CappedTag<double, 8>;
  const D d;
  const hn::Rebind<float, D> df;
  constexpr size_t kStep = hn::MaxLanes(D());
  constexpr size_t kRegs = kLanes / kStep;
  hn::Vec<D> differences[kRegs], norms[kRegs];
  for (size_t r = 0; r < kRegs; ++r) differences[r] = norms[r] = hn::Zero(d);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t r = 0; r < kRegs; ++r) {
      const auto a = hn::PromoteTo(d, hn::LoadU(df, full + i + r * kStep));
      const auto e = hn::Sub(a, hn::PromoteTo(d, hn::LoadU(df, old + i + r * kStep)));
      differences[r] = hn::Add(differences[r], hn::Mul(e, e));
      norms[r] = hn::Add(norms[r], hn::Mul(a, a));
    }
  }
  double difference[kLanes], norm[kLanes];
  for (size_t r = 0; r < kRegs; ++r) {
    hn::StoreU(differences[r], d, difference + r * kStep);
    hn::StoreU(norms[r], d, norm + r * kStep);
  }
  // The remaining elements go to the lanes where a longer row would have put them.
  for (; i < count; ++i) AddElement(full[i], old[i], difference[i % kLanes], norm[i % kLanes]);
  // Folds the lanes pairwise, in the order that deviation.h defines.
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) {
      difference[lane] += difference[lane + half];
      norm[lane] += norm[lane + half];
    }
  }
  return {difference[0], norm[0]};
}

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(DeviationOfRow);

SquaredDeviation DeviationOfRow(const float* full, const float* old, size_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(DeviationOfRow)(full, old, count);
}

namespace ref {

SquaredDeviation DeviationOfRow(const float* full, const float* old, size_t count) noexcept {
  double difference[16] = {}, norm[16] = {};
  for (size_t i = 0; i < count; ++i) {
    const double a = full[i], e = a - old[i];
    difference[i % 16] += e * e;
    norm[i % 16] += a * a;
  }
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) {
      difference[lane] += difference[lane + half];
      norm[lane] += norm[lane + half];
    }
  }
  return {difference[0], norm[0]};
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
