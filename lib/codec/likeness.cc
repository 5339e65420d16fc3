// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/codec/likeness.h"

#include <algorithm>
#include <cmath>

#include "lib/codec/channel_model.h"
#include "lib/kernels/gemm.h"

namespace kv {
namespace {

// Deviations in eighths: whole numbers whose sums of products floats hold exactly, in whatever
// order they are added.
constexpr float kStep = 8, kMost = 31;
constexpr uint64_t kQueries = 64, kCandidates = 1024;

// Rows before rotation, each channel with mean 0 and deviation 1.
std::vector<float> Standardise(const float* x, uint64_t rows, uint64_t columns,
                               const Rotation& rotation) {
  std::vector<float> y(rows * columns);
  Turner turner(rotation, columns);
  for (uint64_t row = 0; row < rows; ++row)
    turner.Turn(-static_cast<uint32_t>(row), x + row * columns, y.data() + row * columns);
  std::vector<double> sum(columns), squares(columns);
  for (uint64_t i = 0; i < y.size(); ++i) {
    const auto value = static_cast<double>(y[i]);
    sum[i % columns] += value;
    squares[i % columns] += value * value;
  }
  std::vector<float> mean(columns), inverse(columns);
  const auto n = static_cast<double>(rows);
  for (uint64_t c = 0; c < columns; ++c) {
    mean[c] = static_cast<float>(sum[c] / n);
    const double variance = squares[c] / n - sum[c] / n * (sum[c] / n);
    inverse[c] = variance > 0 ? static_cast<float>(1 / std::sqrt(variance)) : 0;
  }
  for (uint64_t row = 0; row < rows; ++row) {
    float* out = y.data() + row * columns;
    for (uint64_t c = 0; c < columns; ++c) out[c] = (out[c] - mean[c]) * inverse[c];
  }
  return y;
}

double Dot(const float* a, const float* b, uint64_t n) {
  double sum = 0;
  for (uint64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

std::vector<Likeness> FindLikenesses(const float* x, uint64_t rows, uint64_t columns,
                                     const Rotation& rotation) {
  const std::vector<float> y = Standardise(x, rows, columns, rotation);
  std::vector<float> whole(y.size()), inverse_norm(rows);
  for (uint64_t row = 0; row < rows; ++row) {
    float norm = 0;
    for (uint64_t i = row * columns; i < (row + 1) * columns; ++i) {
      whole[i] = std::clamp(std::nearbyint(y[i] * kStep), -kMost, kMost);
      norm += whole[i] * whole[i];
    }
    inverse_norm[row] = norm > 0 ? 1 / std::sqrt(norm) : 0;
  }

  // Of every row the earlier one at the smallest angle.
  std::vector<uint32_t> best(rows);
  std::vector<float> best_cosine(rows), products(kQueries * kCandidates);
  for (uint64_t first = 0; first < rows; first += kQueries) {
    const uint64_t queries = std::min(kQueries, rows - first);
    for (uint64_t from = 0; from < first + queries; from += kCandidates) {
      const uint64_t candidates = std::min(kCandidates, first + queries - from);
      GemmNT(whole.data() + first * columns, columns, whole.data() + from * columns, columns,
             products.data(), kCandidates, queries, candidates, columns);
      for (uint64_t query = 0; query < queries; ++query) {
        const uint64_t row = first + query;
        const float* product = products.data() + query * kCandidates;
        for (uint64_t i = 0; i < candidates && from + i < row; ++i) {
          const float cosine = product[i] * inverse_norm[from + i];
          if (cosine <= best_cosine[row]) continue;
          best_cosine[row] = cosine;
          best[row] = static_cast<uint32_t>(from + i);
        }
      }
    }
  }

  std::vector<Likeness> likenesses(rows);
  for (uint64_t row = 1; row < rows; ++row) {
    const float *own = y.data() + row * columns, *other = y.data() + best[row] * columns;
    const double product = Dot(own, other, columns);
    if (product <= 0) continue;
    const double left =
        1 - product * product / (Dot(own, own, columns) * Dot(other, other, columns));
    // Naming a row costs bits; what is saved must be more.
    const double saved = -0.5 * std::log2(std::max(left, 1e-9)) * static_cast<double>(columns);
    if (saved < std::log2(static_cast<double>(row)) + 4) continue;
    for (uint32_t likeness = 1; likeness < kLikenessClasses; ++likeness) {
      if (left >= static_cast<double>(kLikenessLimits[likeness])) continue;
      likenesses[row] = {likeness, static_cast<uint32_t>(row - best[row])};
      break;
    }
  }
  return likenesses;
}

}  // namespace kv
