// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/cross_channel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/dense/gemm.h"

namespace kv::analysis {
namespace {

constexpr uint32_t kMaxDim = 512;
constexpr uint64_t kTokensPerDim = 8;
constexpr uint64_t kSliceTokens = 1024;

// Sums of one head over all tokens.
struct Sums {
  std::vector<double> first;   // of each channel
  std::vector<double> second;  // of each product of two channels
};

Sums SumsOf(const KvTensor& tensor, uint32_t head) {
  const uint64_t dim = tensor.head_dim, tokens = tensor.tokens();
  Sums sums{std::vector<double>(dim), std::vector<double>(dim * dim)};
  Bytes raw;
  std::vector<float> columns, products(dim * dim);
  for (uint64_t begin = 0; begin < tokens; begin += kSliceTokens) {
    const uint64_t count = std::min(kSliceTokens, tokens - begin);
    raw.resize(count * dim * tensor.unit_bytes());
    Gather(tensor, begin, count, head, 1, Order::kHeadDimToken, raw);
    columns.resize(count * dim);
    ToFloats(tensor.dtype, raw, columns);
    GemmNT(columns.data(), count, columns.data(), count, products.data(), dim, dim, dim, count);
    for (uint64_t i = 0; i < dim * dim; ++i) sums.second[i] += products[i];
    for (uint64_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (uint64_t t = 0; t < count; ++t) sum += columns[d * count + t];
      sums.first[d] += sum;
    }
  }
  return sums;
}

// log2 of the determinant of a correlation matrix by Cholesky; channels without variance count as
// independent ones.
double Log2Determinant(const Sums& sums, uint64_t dim, double n) {
  const auto covariance = [&](uint64_t i, uint64_t j) {
    return sums.second[i * dim + j] / n - sums.first[i] / n * (sums.first[j] / n);
  };
  std::vector<double> deviation(dim), lower(dim * dim);
  for (uint64_t i = 0; i < dim; ++i) deviation[i] = std::sqrt(std::max(0.0, covariance(i, i)));
  double log2_determinant = 0;
  for (uint64_t i = 0; i < dim; ++i) {
    for (uint64_t j = 0; j <= i; ++j) {
      double value = i == j ? 1.0 : 0.0;
      if (i != j && deviation[i] > 0 && deviation[j] > 0) {
        value = covariance(i, j) / (deviation[i] * deviation[j]);
      }
      for (uint64_t k = 0; k < j; ++k) value -= lower[i * dim + k] * lower[j * dim + k];
      // A channel that others determine would save without end; float sums cannot tell how much.
      if (i == j) {
        constexpr double kLeast = 1e-4;
        value = std::max(value, kLeast);
        log2_determinant += std::log2(value);
        lower[i * dim + i] = std::sqrt(value);
      } else {
        lower[i * dim + j] = value / lower[j * dim + j];
      }
    }
  }
  return log2_determinant;
}

}  // namespace

std::optional<double> CrossChannelGain(const KvTensor& tensor) {
  const uint64_t dim = tensor.head_dim, tokens = tensor.tokens();
  if (!tensor.heads_known || dim > kMaxDim || tokens < kTokensPerDim * dim) return std::nullopt;
  double bits = 0;
  for (uint32_t head = 0; head < tensor.heads; ++head) {
    const Sums sums = SumsOf(tensor, head);
    bits -= Log2Determinant(sums, dim, static_cast<double>(tokens)) / 2;
  }
  return bits / static_cast<double>(dim * tensor.heads);
}

}  // namespace kv::analysis
