// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Prediction and learning of regress.h, except for solving. Channels do not depend on each other,
// so that a lane does what the scalar reference does with one channel, in the same order and
// without fused operations. The layout keeps the 16 lanes of a group innermost, which makes every
// load contiguous.

#include "lib/core/kernels/regress.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/regress.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kRegressLanes>;
using VF = hn::Vec<DF>;

void Combine(const Regress& r) {
  const DF d;
  const size_t model_stride = r.taps * kRegressLanes;
  for (size_t group = 0; group < r.groups; ++group) {
    const float* weights = r.weights + group * kRegressModels * model_stride;
    float* combined = r.combined + group * model_stride;
    for (size_t lane = 0; lane < kRegressLanes; lane += hn::Lanes(d)) {
      const float* errors = r.errors + group * kRegressModels * kRegressLanes + lane;
      const auto error = [&](size_t model) HWY_ATTR {
        return hn::Add(hn::Load(d, errors + model * kRegressLanes), hn::Set(d, kRegressTinyPower));
      };
      const auto e0 = error(0), e1 = error(1), e2 = error(2), e3 = error(3);
      const auto least = hn::Min(hn::Min(e0, e1), hn::Min(e2, e3));
      // A model's weight is the fourth power of the ratio between the least error and its own: the
      // best model dominates, and equal ones share.
      const auto trust = [&](VF e) HWY_ATTR {
        const auto ratio = hn::Div(least, e);
        const auto square = hn::Mul(ratio, ratio);
        return hn::Mul(square, square);
      };
      const auto t0 = trust(e0), t1 = trust(e1), t2 = trust(e2), t3 = trust(e3);
      const auto total = hn::Add(hn::Add(t0, t1), hn::Add(t2, t3));
      const auto s0 = hn::Div(t0, total), s1 = hn::Div(t1, total), s2 = hn::Div(t2, total),
                 s3 = hn::Div(t3, total);
      const float* at = weights + lane;
      for (size_t tap = 0; tap < r.taps; ++tap, at += kRegressLanes) {
        // Pairs of models are added first, as in the grammar: float sums depend on their order.
        const auto low =
            hn::Add(hn::Mul(s0, hn::Load(d, at)), hn::Mul(s1, hn::Load(d, at + model_stride)));
        const auto high = hn::Add(hn::Mul(s2, hn::Load(d, at + 2 * model_stride)),
                                  hn::Mul(s3, hn::Load(d, at + 3 * model_stride)));
        hn::Store(hn::Add(low, high), d, combined + tap * kRegressLanes + lane);
      }
    }
  }
}

void AddTaps(const Regress& r, size_t group, RegressRow taps, const size_t* order, size_t count,
             float* sums) {
  const DF d;
  const float* combined = r.combined + group * r.taps * kRegressLanes;
  for (size_t lane = 0; lane < kRegressLanes; lane += hn::Lanes(d)) {
    const size_t channel = group * kRegressLanes + lane;
    auto sum = hn::LoadU(d, sums + lane);
    for (size_t i = 0; i < count; ++i) {
      const auto weight = hn::Load(d, combined + order[i] * kRegressLanes + lane);
      sum = hn::Add(sum, hn::Mul(weight, hn::LoadU(d, taps[order[i]] + channel)));
    }
    hn::StoreU(sum, d, sums + lane);
  }
}

// Moves a running mean towards a value.
HWY_INLINE VF Follow(VF mean, VF value, float rate) {
  return hn::Add(mean, hn::Mul(hn::Sub(value, mean), hn::Set(DF(), rate)));
}

void Learn(const Regress& r, RegressRow taps, const float* x, const float* prediction,
           const RegressRates& rates) {
  const DF d;
  const auto limit = hn::Set(d, kRegressLimit), weight_of_row = hn::Set(d, rates.weight);
  const auto weighted = [&](VF error)
                            HWY_ATTR { return hn::Mul(hn::Mul(error, error), weight_of_row); };
  for (size_t channel = 0; channel < r.groups * kRegressLanes; channel += hn::Lanes(d)) {
    const size_t group = channel / kRegressLanes, lane = channel % kRegressLanes;
    const float* weights = r.weights + group * kRegressModels * r.taps * kRegressLanes + lane;
    float* errors = r.errors + group * kRegressModels * kRegressLanes + lane;
    const auto value = hn::LoadU(d, x + channel);
    for (size_t model = 0; model < kRegressModels; ++model) {
      auto sum = hn::Zero(d);
      for (size_t tap = 0; tap < r.sizes[model]; ++tap) {
        const auto weight = hn::Load(d, weights + (model * r.taps + tap) * kRegressLanes);
        sum = hn::Add(sum, hn::Mul(weight, hn::LoadU(d, taps[tap] + channel)));
      }
      // A diverging model predicts 0 instead of spoiling the sums; NaN compares as false.
      sum = hn::IfThenElseZero(hn::Lt(hn::Abs(sum), limit), sum);
      const auto error = hn::Sub(value, sum);
      float* at = errors + model * kRegressLanes;
      hn::Store(Follow(hn::Load(d, at), weighted(error), rates.errors), d, at);
    }
    const auto error = hn::Sub(value, hn::LoadU(d, prediction + channel));
    float *variance = r.variance + channel, *power = r.power + channel;
    hn::Store(Follow(hn::Load(d, variance), weighted(error), rates.variance), d, variance);
    hn::Store(Follow(hn::Load(d, power), hn::Mul(value, value), rates.power), d, power);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Combine);
HWY_EXPORT(AddTaps);
HWY_EXPORT(Learn);

void RegressCombine(const Regress& r) noexcept { HWY_DYNAMIC_DISPATCH(Combine)(r); }

void RegressAdd(const Regress& r, size_t group, RegressRow taps, const size_t* order, size_t count,
                float* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(AddTaps)(r, group, taps, order, count, sums);
}

void RegressLearn(const Regress& r, RegressRow taps, const float* x, const float* prediction,
                  const RegressRates& rates) noexcept {
  HWY_DYNAMIC_DISPATCH(Learn)(r, taps, x, prediction, rates);
}

namespace ref {

void RegressCombine(const Regress& r) noexcept {
  for (size_t channel = 0; channel < r.groups * kRegressLanes; ++channel) {
    const size_t group = channel / kRegressLanes, lane = channel % kRegressLanes;
    float trust[kRegressModels], error[kRegressModels];
    for (size_t model = 0; model < kRegressModels; ++model)
      error[model] =
          r.errors[(group * kRegressModels + model) * kRegressLanes + lane] + kRegressTinyPower;
    const float least = *std::min_element(error, error + kRegressModels);
    for (size_t model = 0; model < kRegressModels; ++model) {
      // The fourth power favours the best model strongly, without excluding others that are nearly
      // as good.
      const float ratio = least / error[model], square = ratio * ratio;
      trust[model] = square * square;
    }
    const float total = (trust[0] + trust[1]) + (trust[2] + trust[3]);
    for (size_t tap = 0; tap < r.taps; ++tap) {
      float part[kRegressModels];
      for (size_t model = 0; model < kRegressModels; ++model) {
        part[model] =
            trust[model] / total *
            r.weights[((group * kRegressModels + model) * r.taps + tap) * kRegressLanes + lane];
      }
      r.combined[(group * r.taps + tap) * kRegressLanes + lane] =
          (part[0] + part[1]) + (part[2] + part[3]);
    }
  }
}

void RegressAdd(const Regress& r, size_t group, RegressRow taps, const size_t* order, size_t count,
                float* sums) noexcept {
  for (size_t lane = 0; lane < kRegressLanes; ++lane) {
    for (size_t i = 0; i < count; ++i) {
      sums[lane] += r.combined[(group * r.taps + order[i]) * kRegressLanes + lane] *
                    taps[order[i]][group * kRegressLanes + lane];
    }
  }
}

void RegressLearn(const Regress& r, RegressRow taps, const float* x, const float* prediction,
                  const RegressRates& rates) noexcept {
  for (size_t channel = 0; channel < r.groups * kRegressLanes; ++channel) {
    const size_t group = channel / kRegressLanes, lane = channel % kRegressLanes;
    const auto follow = [](float& mean, float value, float rate) { mean += (value - mean) * rate; };
    for (size_t model = 0; model < kRegressModels; ++model) {
      const size_t at = group * kRegressModels + model;
      float sum = 0;
      for (size_t tap = 0; tap < r.sizes[model]; ++tap)
        sum += r.weights[(at * r.taps + tap) * kRegressLanes + lane] * taps[tap][channel];
      if (!(std::abs(sum) < kRegressLimit)) sum = 0;
      const float error = x[channel] - sum;
      follow(r.errors[at * kRegressLanes + lane], error * error * rates.weight, rates.errors);
    }
    const float error = x[channel] - prediction[channel];
    follow(r.variance[channel], error * error * rates.weight, rates.variance);
    follow(r.power[channel], x[channel] * x[channel], rates.power);
  }
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
