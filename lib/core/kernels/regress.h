// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstddef>

// Least squares of all channels of a row, each on taps of its own: values near it that are known
// when it comes. Sixteen channels are a group, one per lane. Four nested models, of the first few
// taps and of all, predict together, each by how well it did of late. Plain float operations + - *
// / and square roots in the order of the reference, none fused: archives depend on every bit.
// lib/core/codec/cdf/FORMAT.md spells them out.
namespace kv {

constexpr size_t kRegressLanes = 16;
constexpr size_t kRegressModels = 4;
constexpr size_t kMaxRegressTaps = 64;
constexpr size_t kMaxRegressRows = 16;  // taken in at once
// Predictions are of values below 2; what reaches this, or is no number, counts as 0.
constexpr float kRegressLimit = 4.0f;

constexpr size_t RegressPairs(size_t taps) { return taps * (taps + 1) / 2; }

// Arrays of all groups, one group after another; [..][lane] is innermost.
struct Regress {
  size_t groups = 0, taps = 0;
  std::array<size_t, kRegressModels> sizes{};  // taps of each model, ascending; the last has all
  float* products = nullptr;                   // [pair][lane]: sums of tap i * tap j, j <= i
  float* moments = nullptr;                    // [tap][lane]: sums of tap * value
  float* weights = nullptr;                    // [model][tap][lane], 0 beyond a model's taps
  float* combined = nullptr;                   // [tap][lane]: what the models predict together with
  float* errors = nullptr;                     // [model][lane]: running mean squares
  float* variance = nullptr;                   // [lane]: of the error of the common prediction
  float* power = nullptr;                      // [lane]: of the values
};

// A tap of every channel of a row: taps[j][channel]. May lie at any alignment.
using RegressRow = const float* const*;

// The common weights of the next row, from the errors so far.
void RegressCombine(const Regress& r) noexcept;

// Adds to sums[16] the taps `order[0 .. count)` of one group in that order.
void RegressAdd(const Regress& r, size_t group, RegressRow taps, const size_t* order, size_t count,
                float* sums) noexcept;

// How fast errors, variance and power follow, and what squared errors of the row are worth.
struct RegressRates {
  float errors, variance, power, weight;
};
// Takes in the row `x` that was predicted as `prediction`.
void RegressLearn(const Regress& r, RegressRow taps, const float* x, const float* prediction,
                  const RegressRates& rates) noexcept;

// Sums in `rows` rows (taps[row * r.taps + j], x[row]), each times its root twice, older sums times
// `decay`, and solves all models anew. `samples` is how many rows that makes.
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
