// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Implements RegressSolve of regress.h: updates the normal equations of every channel, factorises
// them by Cholesky and substitutes back for the four models, which share one factor because they
// are nested. This takes 27 % of the time of level max (docs/lab.md, "The codec"), so sums are
// computed in tiles that stay in registers. Every sum still takes its terms in the order of the
// scalar reference at the end, because archives depend on every bit.
#include <algorithm>
#include <cmath>

#include "lib/core/kernels/regress.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/regress_solve.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

// Ridge, in samples, that pulls weights towards 0: a part in proportion to the noise, and a
// constant part.
#ifndef KV_REGRESS_RIDGE
#define KV_REGRESS_RIDGE
namespace kv {
constexpr float kRidgeOfNoise = 8.0f, kRidge = 0.05f;
constexpr float kTinyRidge = 1e-12f;  // avoids a division by 0 for taps that are always 0
}  // namespace kv
#endif

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kRegressLanes>;
using VF = hn::Vec<DF>;

// Products and factor are computed in tiles whose sums stay in registers. Each sum takes the same
// terms in the same order as in the reference.
//
// Features are taps of all rows side by side: [(tap * rows + row) * lanes].
struct Features {
  const float* values;
  size_t rows, lanes;
};

// Adds the products of taps i, i + 1, ... with j, j + 1, ... to the older ones.
template <size_t kI, size_t kJ>
HWY_INLINE void AddProducts(const Features& features, size_t i, size_t j, VF old, float* products) {
  const DF d;
  const size_t step = features.rows * features.lanes;
  const float *a = features.values + i * step, *b = features.values + j * step;
  const auto at = [&](size_t y, size_t x)
                      HWY_ATTR { return products + (RegressPairs(i + y) + j + x) * kRegressLanes; };
  // kI * kJ sums are kept in registers, while each loaded tap is used kI or kJ times.
  VF sum[kI][kJ];
  for (size_t y = 0; y < kI; ++y) {
    for (size_t x = 0; x < kJ; ++x) sum[y][x] = hn::Mul(hn::Load(d, at(y, x)), old);
  }
  for (size_t row = 0; row < step; row += features.lanes) {
    for (size_t y = 0; y < kI; ++y) {
      const auto left = hn::Load(d, a + y * step + row);
      for (size_t x = 0; x < kJ; ++x)
        sum[y][x] = hn::Add(sum[y][x], hn::Mul(left, hn::Load(d, b + x * step + row)));
    }
  }
  for (size_t y = 0; y < kI; ++y) {
    for (size_t x = 0; x < kJ; ++x) hn::Store(sum[y][x], d, at(y, x));
  }
}

// The Cholesky factor of the products, [pair], with its diagonal inverted. The moments form the
// last row and take the same steps, which is the forward substitution.
struct Factor {
  const float *products, *moments;
  float* factor;
  size_t taps, lanes;
  VF ridge;

  HWY_INLINE float* Row(size_t i) const { return factor + RegressPairs(i) * lanes; }
  HWY_INLINE const float* Source(size_t i) const {
    return i == taps ? moments : products + RegressPairs(i) * kRegressLanes;
  }
};

// Computes rows i, i + 1, ... of four columns from j on, whose diagonal block is done. i is at
// least j + 4.
template <size_t kI>
HWY_INLINE void FactorBelow(const Factor& f, size_t i, size_t j) {
  const DF d;
  VF sum[kI][4];
  for (size_t y = 0; y < kI; ++y) {
    for (size_t x = 0; x < 4; ++x)
      sum[y][x] = hn::Load(d, f.Source(i + y) + (j + x) * kRegressLanes);
  }
  for (size_t k = 0; k < j * f.lanes; k += f.lanes) {
    for (size_t y = 0; y < kI; ++y) {
      const auto left = hn::Load(d, f.Row(i + y) + k);
      for (size_t x = 0; x < 4; ++x)
        sum[y][x] = hn::Sub(sum[y][x], hn::Mul(left, hn::Load(d, f.Row(j + x) + k)));
    }
  }
  for (size_t y = 0; y < kI; ++y) {
    for (size_t x = 0; x < 4; ++x) {
      const float* other = f.Row(j + x) + j * f.lanes;
      for (size_t k = 0; k < x; ++k)
        sum[y][x] = hn::Sub(sum[y][x], hn::Mul(sum[y][k], hn::Load(d, other + k * f.lanes)));
      sum[y][x] = hn::Mul(sum[y][x], hn::Load(d, other + x * f.lanes));
      hn::Store(sum[y][x], d, f.Row(i + y) + (j + x) * f.lanes);
    }
  }
}

// Computes row j + kJ - 1 of the diagonal block that starts at column j.
template <size_t kJ>
HWY_INLINE void FactorDiagonal(const Factor& f, size_t j) {
  const DF d;
  const size_t i = j + kJ - 1;
  float* row = f.Row(i);
  VF sum[kJ];
  for (size_t x = 0; x < kJ; ++x) sum[x] = hn::Load(d, f.Source(i) + (j + x) * kRegressLanes);
  const auto least = hn::Add(hn::Mul(sum[kJ - 1], f.ridge), hn::Set(d, kTinyRidge));
  sum[kJ - 1] = hn::Add(sum[kJ - 1], least);
  for (size_t k = 0; k < j * f.lanes; k += f.lanes) {
    const auto left = hn::Load(d, row + k);
    for (size_t x = 0; x < kJ; ++x)
      sum[x] = hn::Sub(sum[x], hn::Mul(left, hn::Load(d, f.Row(j + x) + k)));
  }
  for (size_t x = 0; x < kJ; ++x) {
    const float* other = f.Row(j + x) + j * f.lanes;
    for (size_t k = 0; k < x; ++k) {
      const auto right = x + 1 == kJ ? sum[k] : hn::Load(d, other + k * f.lanes);
      sum[x] = hn::Sub(sum[x], hn::Mul(sum[k], right));
    }
    // Rounding may leave less on the diagonal than the ridge added; the ridge is then the floor.
    sum[x] = x + 1 == kJ ? hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Max(sum[x], least)))
                         : hn::Mul(sum[x], hn::Load(d, other + x * f.lanes));
    hn::Store(sum[x], d, row + (j + x) * f.lanes);
  }
}

// Subtracts from the sums of tap i, in the models from kFirst on, the parts of the taps from `from`
// to `end`.
template <size_t kFirst>
HWY_INLINE void SubtractWeights(const Factor& f, size_t i, size_t from, size_t end,
                                const float* weights, VF* sums) {
  const DF d;
  for (size_t k = from; k < end; ++k) {
    const auto left = hn::Load(d, f.Row(k) + i * f.lanes);
    for (size_t model = kFirst; model < kRegressModels; ++model) {
      const float* weight = weights + (model * f.taps + k) * kRegressLanes;
      sums[model] = hn::Sub(sums[model], hn::Mul(left, hn::Load(d, weight)));
    }
  }
}

// Computes the weights of tap i in all models that have it, side by side: each alone would be a
// chain of dependent operations.
HWY_INLINE void Substitute(const Factor& f, const std::array<size_t, kRegressModels>& sizes,
                           size_t i, float* weights) {
  const DF d;
  VF sums[kRegressModels];
  for (VF& sum : sums) sum = hn::Load(d, f.Row(f.taps) + i * f.lanes);
  const auto from = [&](size_t model) { return std::max(i + 1, sizes[model - 1]); };
  SubtractWeights<0>(f, i, i + 1, sizes[0], weights, sums);
  SubtractWeights<1>(f, i, from(1), sizes[1], weights, sums);
  SubtractWeights<2>(f, i, from(2), sizes[2], weights, sums);
  SubtractWeights<3>(f, i, from(3), sizes[3], weights, sums);
  const auto inverse = hn::Load(d, f.Row(i) + i * f.lanes);
  for (size_t model = 0; model < kRegressModels; ++model) {
    if (i >= sizes[model]) continue;
    float* out = weights + (model * f.taps + i) * kRegressLanes;
    hn::Store(hn::Mul(sums[model], inverse), d, out);
  }
}

// Scales the rows by their roots, taps side by side, and the targets behind them.
void ScaleRows(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
               size_t rows, size_t channel, float* HWY_RESTRICT features) {
  const DF d;
  const size_t lanes = hn::Lanes(d), n = r.taps;
  float* targets = features + n * rows * lanes;
  for (size_t row = 0; row < rows; ++row) {
    const auto root = hn::Set(d, roots[row]);
    for (size_t tap = 0; tap < n; ++tap) {
      hn::Store(hn::Mul(hn::LoadU(d, taps[row * n + tap] + channel), root), d,
                features + (tap * rows + row) * lanes);
    }
    hn::Store(hn::Mul(hn::LoadU(d, x[row] + channel), root), d, targets + row * lanes);
  }
}

// Adds the rows to the products and moments of n taps, which decay.
HWY_INLINE void AddRows(const Features& added, size_t n, float decay, float* products,
                        float* moments) {
  const DF d;
  const auto old = hn::Set(d, decay);
  // Takes two rows and four columns at a time, then the rest up to the diagonal one by one.
  for (size_t i = 0; i < n; i += 2) {
    const size_t both = std::min<size_t>(2, n - i);
    size_t j = 0;
    for (; both == 2 && j + 4 <= i + 1; j += 4) AddProducts<2, 4>(added, i, j, old, products);
    for (size_t row = i; row < i + both; ++row) {
      for (size_t rest = j; rest <= row; ++rest) AddProducts<1, 1>(added, row, rest, old, products);
    }
  }
  const size_t step = added.rows * added.lanes;
  const float* targets = added.values + n * step;
  for (size_t i = 0; i < n; ++i) {
    const float* a = added.values + i * step;
    float* moment = moments + i * kRegressLanes;
    auto sum = hn::Mul(hn::Load(d, moment), old);
    for (size_t row = 0; row < step; row += added.lanes)
      sum = hn::Add(sum, hn::Mul(hn::Load(d, a + row), hn::Load(d, targets + row)));
    hn::Store(sum, d, moment);
  }
}

// Computes the factor: four columns at a time, their diagonal block first, then all rows below it,
// in pairs.
HWY_INLINE void FactorProducts(const Factor& f) {
  const DF d;
  size_t j = 0;
  for (; j + 4 <= f.taps; j += 4) {
    FactorDiagonal<1>(f, j);
    FactorDiagonal<2>(f, j);
    FactorDiagonal<3>(f, j);
    FactorDiagonal<4>(f, j);
    size_t i = j + 4;
    for (; i + 2 <= f.taps + 1; i += 2) FactorBelow<2>(f, i, j);
    for (; i <= f.taps; ++i) FactorBelow<1>(f, i, j);
  }
  // The number of taps need not be a multiple of four: up to three columns are left.
  if (f.taps > j) FactorDiagonal<1>(f, j);
  if (f.taps > j + 1) FactorDiagonal<2>(f, j);
  if (f.taps > j + 2) FactorDiagonal<3>(f, j);
  // Finishes these columns of the last row, which holds the moments.
  float* forward = f.Row(f.taps);
  for (; j < f.taps; ++j) {
    const float* row = f.Row(j);
    auto sum = hn::Load(d, f.moments + j * kRegressLanes);
    for (size_t k = 0; k < j * f.lanes; k += f.lanes)
      sum = hn::Sub(sum, hn::Mul(hn::Load(d, row + k), hn::Load(d, forward + k)));
    hn::Store(hn::Mul(sum, hn::Load(d, row + j * f.lanes)), d, forward + j * f.lanes);
  }
}

// Solves one vector of channels: sums, factor, weights.
void SolveLanes(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
                size_t rows, float decay, float samples, size_t channel,
                float* HWY_RESTRICT features, float* HWY_RESTRICT factor) {
  const DF d;
  const size_t lanes = hn::Lanes(d), n = r.taps;
  const size_t group = channel / kRegressLanes, lane = channel % kRegressLanes;
  float* products = r.products + group * RegressPairs(n) * kRegressLanes + lane;
  float* moments = r.moments + group * n * kRegressLanes + lane;
  float* weights = r.weights + group * kRegressModels * n * kRegressLanes + lane;
  ScaleRows(r, taps, x, roots, rows, channel, features);
  AddRows({features, rows, lanes}, n, decay, products, moments);
  // The ridge grows with the share of a value that the model does not explain, so that weights of
  // noisy channels stay small.
  const auto noise =
      hn::Min(hn::Div(hn::Load(d, r.variance + channel),
                      hn::Add(hn::Load(d, r.power + channel), hn::Set(d, kRegressTinyPower))),
              hn::Set(d, 1.0f));
  const auto ridge = hn::Div(hn::Add(hn::Mul(noise, hn::Set(d, kRidgeOfNoise)), hn::Set(d, kRidge)),
                             hn::Set(d, samples));
  const Factor parts{products, moments, factor, n, lanes, ridge};
  FactorProducts(parts);
  for (size_t i = n; i-- > 0;) Substitute(parts, r.sizes, i, weights);
}

void Solve(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
           size_t rows, float decay, float samples) {
  alignas(64) float features[(kMaxRegressTaps + 1) * kRegressLanes * kMaxRegressRows];
  alignas(64) float factor[RegressPairs(kMaxRegressTaps + 1) * kRegressLanes];
  for (size_t channel = 0; channel < r.groups * kRegressLanes; channel += hn::Lanes(DF())) {
    SolveLanes(r, taps, x, roots, rows, decay, samples, channel, features, factor);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Solve);

void RegressSolve(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
                  size_t rows, float decay, float samples) noexcept {
  HWY_DYNAMIC_DISPATCH(Solve)(r, taps, x, roots, rows, decay, samples);
}

namespace ref {

void RegressSolve(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
                  size_t rows, float decay, float samples) noexcept {
  const size_t n = r.taps;
  for (size_t channel = 0; channel < r.groups * kRegressLanes; ++channel) {
    const size_t group = channel / kRegressLanes, lane = channel % kRegressLanes;
    float factor[kMaxRegressTaps][kMaxRegressTaps], inverse[kMaxRegressTaps];
    float forward[kMaxRegressTaps];
    const float noise =
        std::min(r.variance[channel] / (r.power[channel] + kRegressTinyPower), 1.0f);
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
