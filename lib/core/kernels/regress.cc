// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/regress.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/regress.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

// How strongly weights are held near 0, in samples: with what of a value is noise, and always.
#ifndef KV_REGRESS_RIDGE
#define KV_REGRESS_RIDGE
namespace kv {
constexpr float kRidgeOfNoise = 8.0f, kRidge = 0.05f;
constexpr float kTinyRidge = 1e-12f;  // of taps that are always 0
constexpr float kTinyPower = 1e-12f;
}  // namespace kv
#endif

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
        return hn::Add(hn::Load(d, errors + model * kRegressLanes), hn::Set(d, kTinyPower));
      };
      const auto e0 = error(0), e1 = error(1), e2 = error(2), e3 = error(3);
      const auto least = hn::Min(hn::Min(e0, e1), hn::Min(e2, e3));
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

// One vector of channels: sums, factor, weights.
void SolveLanes(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
                size_t rows, float decay, float samples, size_t channel,
                float* HWY_RESTRICT features, float* HWY_RESTRICT factor) {
  const DF d;
  const size_t lanes = hn::Lanes(d), n = r.taps;
  const size_t group = channel / kRegressLanes, lane = channel % kRegressLanes;
  float* products = r.products + group * RegressPairs(n) * kRegressLanes + lane;
  float* moments = r.moments + group * n * kRegressLanes + lane;
  float* weights = r.weights + group * kRegressModels * n * kRegressLanes + lane;

  // Taps side by side: features[(tap * rows + row) * lanes].
  float* targets = features + n * rows * lanes;
  for (size_t row = 0; row < rows; ++row) {
    const auto root = hn::Set(d, roots[row]);
    for (size_t tap = 0; tap < n; ++tap) {
      hn::Store(hn::Mul(hn::LoadU(d, taps[row * n + tap] + channel), root), d,
                features + (tap * rows + row) * lanes);
    }
    hn::Store(hn::Mul(hn::LoadU(d, x[row] + channel), root), d, targets + row * lanes);
  }
  const auto old = hn::Set(d, decay);
  for (size_t i = 0; i < n; ++i) {
    const float* a = features + i * rows * lanes;
    float* out = products + RegressPairs(i) * kRegressLanes;
    for (size_t j = 0; j <= i; ++j, out += kRegressLanes) {
      const float* b = features + j * rows * lanes;
      auto sum = hn::Mul(hn::Load(d, out), old);
      for (size_t row = 0; row < rows; ++row) {
        sum = hn::Add(sum, hn::Mul(hn::Load(d, a + row * lanes), hn::Load(d, b + row * lanes)));
      }
      hn::Store(sum, d, out);
    }
    float* moment = moments + i * kRegressLanes;
    auto sum = hn::Mul(hn::Load(d, moment), old);
    for (size_t row = 0; row < rows; ++row) {
      sum = hn::Add(sum, hn::Mul(hn::Load(d, a + row * lanes), hn::Load(d, targets + row * lanes)));
    }
    hn::Store(sum, d, moment);
  }

  // Cholesky: factor[pair], its diagonal inverted.
  const auto noise =
      hn::Min(hn::Div(hn::Load(d, r.variance + channel),
                      hn::Add(hn::Load(d, r.power + channel), hn::Set(d, kTinyPower))),
              hn::Set(d, 1.0f));
  const auto ridge = hn::Div(hn::Add(hn::Mul(noise, hn::Set(d, kRidgeOfNoise)), hn::Set(d, kRidge)),
                             hn::Set(d, samples));
  const float* source = products;
  for (size_t i = 0; i < n; ++i) {
    float* row = factor + RegressPairs(i) * lanes;
    for (size_t j = 0; j <= i; ++j, source += kRegressLanes) {
      const float* other = factor + RegressPairs(j) * lanes;
      const auto product = hn::Load(d, source);
      auto sum = product, least = product;
      if (i == j) {
        least = hn::Add(hn::Mul(product, ridge), hn::Set(d, kTinyRidge));
        sum = hn::Add(sum, least);
      }
      for (size_t k = 0; k < j; ++k) {
        sum = hn::Sub(sum, hn::Mul(hn::Load(d, row + k * lanes), hn::Load(d, other + k * lanes)));
      }
      if (i == j) {
        // What rounding leaves of it is never less than what was added.
        hn::Store(hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Max(sum, least))), d, row + j * lanes);
      } else {
        hn::Store(hn::Mul(sum, hn::Load(d, other + j * lanes)), d, row + j * lanes);
      }
    }
  }
  float* forward = features;  // its values are summed
  for (size_t i = 0; i < n; ++i) {
    const float* row = factor + RegressPairs(i) * lanes;
    auto sum = hn::Load(d, moments + i * kRegressLanes);
    for (size_t k = 0; k < i; ++k) {
      sum = hn::Sub(sum, hn::Mul(hn::Load(d, row + k * lanes), hn::Load(d, forward + k * lanes)));
    }
    hn::Store(hn::Mul(sum, hn::Load(d, row + i * lanes)), d, forward + i * lanes);
  }
  for (size_t model = 0; model < kRegressModels; ++model) {
    float* out = weights + model * n * kRegressLanes;
    for (size_t i = r.sizes[model]; i-- > 0;) {
      auto sum = hn::Load(d, forward + i * lanes);
      for (size_t k = i + 1; k < r.sizes[model]; ++k) {
        sum = hn::Sub(sum, hn::Mul(hn::Load(d, factor + (RegressPairs(k) + i) * lanes),
                                   hn::Load(d, out + k * kRegressLanes)));
      }
      hn::Store(hn::Mul(sum, hn::Load(d, factor + (RegressPairs(i) + i) * lanes)), d,
                out + i * kRegressLanes);
    }
  }
}

void Solve(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
           size_t rows, float decay, float samples) {
  alignas(64) float features[(kMaxRegressTaps + 1) * kRegressLanes * kMaxRegressRows];
  alignas(64) float factor[RegressPairs(kMaxRegressTaps) * kRegressLanes];
  for (size_t channel = 0; channel < r.groups * kRegressLanes; channel += hn::Lanes(DF())) {
    SolveLanes(r, taps, x, roots, rows, decay, samples, channel, features, factor);
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
HWY_EXPORT(Solve);

void RegressCombine(const Regress& r) noexcept { HWY_DYNAMIC_DISPATCH(Combine)(r); }

void RegressAdd(const Regress& r, size_t group, RegressRow taps, const size_t* order, size_t count,
                float* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(AddTaps)(r, group, taps, order, count, sums);
}

void RegressLearn(const Regress& r, RegressRow taps, const float* x, const float* prediction,
                  const RegressRates& rates) noexcept {
  HWY_DYNAMIC_DISPATCH(Learn)(r, taps, x, prediction, rates);
}

void RegressSolve(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
                  size_t rows, float decay, float samples) noexcept {
  HWY_DYNAMIC_DISPATCH(Solve)(r, taps, x, roots, rows, decay, samples);
}

namespace ref {

void RegressCombine(const Regress& r) noexcept {
  for (size_t channel = 0; channel < r.groups * kRegressLanes; ++channel) {
    const size_t group = channel / kRegressLanes, lane = channel % kRegressLanes;
    float trust[kRegressModels], error[kRegressModels];
    for (size_t model = 0; model < kRegressModels; ++model)
      error[model] = r.errors[(group * kRegressModels + model) * kRegressLanes + lane] + kTinyPower;
    const float least = *std::min_element(error, error + kRegressModels);
    for (size_t model = 0; model < kRegressModels; ++model) {
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

void RegressSolve(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
                  size_t rows, float decay, float samples) noexcept {
  const size_t n = r.taps;
  for (size_t channel = 0; channel < r.groups * kRegressLanes; ++channel) {
    const size_t group = channel / kRegressLanes, lane = channel % kRegressLanes;
    float factor[kMaxRegressTaps][kMaxRegressTaps], inverse[kMaxRegressTaps];
    float forward[kMaxRegressTaps];
    const float noise = std::min(r.variance[channel] / (r.power[channel] + kTinyPower), 1.0f);
    const float ridge = (noise * kRidgeOfNoise + kRidge) / samples;
    for (size_t i = 0; i < n; ++i) {
      float& moment = r.moments[(group * n + i) * kRegressLanes + lane];
      moment *= decay;
      for (size_t row = 0; row < rows; ++row)
        moment += (taps[row * n + i][channel] * roots[row]) * (x[row][channel] * roots[row]);
      forward[i] = moment;
      for (size_t j = 0; j <= i; ++j) {
        float& product =
            r.products[(group * RegressPairs(n) + RegressPairs(i) + j) * kRegressLanes + lane];
        product *= decay;
        for (size_t row = 0; row < rows; ++row)
          product +=
              (taps[row * n + i][channel] * roots[row]) * (taps[row * n + j][channel] * roots[row]);
        const float least = product * ridge + kTinyRidge;
        float sum = i == j ? product + least : product;
        for (size_t k = 0; k < j; ++k) sum -= factor[i][k] * factor[j][k];
        if (i == j) {
          inverse[i] = 1.0f / std::sqrt(std::max(sum, least));
        } else {
          factor[i][j] = sum * inverse[j];
        }
      }
    }
    for (size_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < i; ++k) forward[i] -= factor[i][k] * forward[k];
      forward[i] *= inverse[i];
    }
    for (size_t model = 0; model < kRegressModels; ++model) {
      float* weights = r.weights + (group * kRegressModels + model) * n * kRegressLanes + lane;
      for (size_t i = r.sizes[model]; i-- > 0;) {
        float sum = forward[i];
        for (size_t k = i + 1; k < r.sizes[model]; ++k)
          sum -= factor[k][i] * weights[k * kRegressLanes];
        weights[i * kRegressLanes] = sum * inverse[i];
      }
    }
  }
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
