// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstddef>

// Predicts every channel of a row by linear least squares from its taps: nearby values that the
// decoder already knows. Sixteen channels form a group, one per lane. Four nested models, from the
// first few taps up to all of them, predict together, each weighted by how well it predicted
// lately. All operations are on floats (+ - * / and square roots), in the order of the reference,
// none fused, because archives depend on every bit. lib/core/codec/cdf/FORMAT.md spells them out.
// regress_solve.cc implements RegressSolve, regress.cc the rest.
namespace kv {

constexpr size_t kRegressLanes = 16;
constexpr size_t kRegressModels = 4;
constexpr size_t kMaxRegressTaps = 64;
constexpr size_t kMaxRegressRows = 16;  // most rows that RegressSolve adds at once
// Values are scaled to be below 2. A value or prediction that reaches this limit, or is NaN, counts
// as 0.
constexpr float kRegressLimit = 4.0f;
// Added to powers and errors, which are used as divisors.
constexpr float kRegressTinyPower = 1e-12f;

constexpr size_t RegressPairs(size_t taps) { return taps * (taps + 1) / 2; }

// The state of all groups. Each array holds one group after another, in the given layout, lanes
// innermost.
struct Regress {
  size_t groups = 0, taps = 0;
  std::array<size_t, kRegressModels> sizes{};  // taps of each model, ascending; the last has all
  float* products = nullptr;                   // [pair][lane]: sums of tap i * tap j, j <= i
  float* moments = nullptr;                    // [tap][lane]: sums of tap * value
  float* weights = nullptr;                    // [model][tap][lane], 0 beyond a model's taps
  float* combined = nullptr;                   // [tap][lane]: weights of the common prediction
  float* errors = nullptr;                     // [model][lane]: running mean squared errors
  float* variance = nullptr;  // [lane]: mean squared errors of the common prediction
  float* power = nullptr;     // [lane]: running mean squares of the values
};

// The taps of a row: taps[j][channel], at any alignment.
using RegressRow = const float* const*;

// Computes the common weights for the next row from the errors so far.
void RegressCombine(const Regress& r) noexcept;

// Adds combined weight * tap to the 16 sums of one group, for the taps order[0 .. count), in that
// order.
void RegressAdd(const Regress& r, size_t group, RegressRow taps, const size_t* order, size_t count,
                float* sums) noexcept;

// Rates at which the running means follow a row, and the weight of the row's squared errors.
struct RegressRates {
  float errors, variance, power, weight;
};
// Updates errors, variance and power with the row `x`, which was predicted as `prediction`.
void RegressLearn(const Regress& r, RegressRow taps, const float* x, const float* prediction,
                  const RegressRates& rates) noexcept;

// Multiplies the older sums by `decay` and adds `rows` rows (taps[row * r.taps + j], x[row]) to
// products and moments, each weighted by the square of its root. Then solves all models again.
// `samples` is the number of rows that the sums represent.
void RegressSolve(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
                  size_t rows, float decay, float samples) noexcept;

namespace ref {
void RegressCombine(const Regress& r) noexcept;
void RegressAdd(const Regress& r, size_t group, RegressRow taps, const size_t* order, size_t count,
                float* sums) noexcept;
void RegressLearn(const Regress& r, RegressRow taps, const float* x, const float* prediction,
                  const RegressRates& rates) noexcept;
void RegressSolve(const Regress& r, RegressRow taps, const float* const* x, const float* roots,
                  size_t rows, float decay, float samples) noexcept;
}  // namespace ref

}  // namespace kv
