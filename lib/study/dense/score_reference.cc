// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Scalar references of the score kernels, which define their bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"
#include "lib/study/dense/score.h"

namespace kv::ref {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kTotalBlock = 64;

float Fold(float* lanes) {
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

float Key(const std::byte* row, KeyType type, size_t i) {
  switch (type) {
    case KeyType::kF16:
      return F16ToF32(LoadLE<uint16_t>(row + 2 * i));
    case KeyType::kBF16:
      return BF16ToF32(LoadLE<uint16_t>(row + 2 * i));
    case KeyType::kF32:
      return LoadLE<float>(row + 4 * i);
  }
  return 0;
}

}  // namespace

void QueryLogits(const float* query, const KeyRows& keys, float scale, float* logits) noexcept {
  for (size_t key = 0; key < keys.count; ++key) {
    const std::byte* row = keys.data + key * keys.stride;
    float lanes[kLanes] = {};
    for (size_t i = 0; i < keys.dim; ++i) {
      const float product = query[i] * Key(row, keys.type, i);
      lanes[i % kLanes] += product;
    }
    logits[key] = Fold(lanes) * scale;
  }
}

float RowMaximum(const float* row, size_t count) noexcept {
  float maximum = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < count; ++i) maximum = row[i] > maximum ? row[i] : maximum;
  return maximum;
}

// Computes 2^n * e^r with |r| <= ln 2 / 2: n by adding and subtracting 1.5 * 2^23, r in two steps,
// then a minimax polynomial of degree 6 with 1 + r kept, so that exp(0) is 1. Every multiply-add is
// fused, also on targets without the instruction, so that all give the same bits.
float Exp(float x) noexcept {
  if (x < -87.0f) return 0.0f;
  const float shifted = std::fma(x, 1.44269504088896341f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.381454020e-3f;
  p = std::fma(p, r, 8.368745207e-3f);
  p = std::fma(p, r, 4.166839079e-2f);
  p = std::fma(p, r, 1.666652040e-1f);
  p = std::fma(p, r, 4.999999343e-1f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;
  return p * std::bit_cast<float>(power);
}

void ExpRow(float* row, size_t count, float maximum) noexcept {
  for (size_t i = 0; i < count; ++i) row[i] = Exp(row[i] - maximum);
}

double BlockSums(const float* row, size_t count, size_t block, float* sums) noexcept {
  double total = 0;
  if (block == 1) {
    float unused;
    for (size_t begin = 0; begin < count; begin += kTotalBlock) {
      const size_t part = std::min(kTotalBlock, count - begin);
      total += ref::BlockSums(row + begin, part, kTotalBlock, &unused);
    }
    if (sums != row) std::copy_n(row, count, sums);
    return total;
  }
  for (size_t begin = 0, b = 0; begin < count; begin += block, ++b) {
    const size_t end = std::min(count, begin + block);
    float lanes[kLanes] = {};
    for (size_t i = begin; i < end; ++i) lanes[(i - begin) % kLanes] += row[i];
    sums[b] = Fold(lanes);
    total += sums[b];
  }
  return total;
}

double ExpBlockSums(float* row, size_t count, float maximum, size_t block, float* sums) noexcept {
  ref::ExpRow(row, count, maximum);
  return ref::BlockSums(row, count, block, sums);
}

void AddScaled(const float* row, size_t count, float weight, float* sums) noexcept {
  for (size_t i = 0; i < count; ++i) {
    const float product = weight * row[i];
    sums[i] += product;
  }
}

namespace {

// Adds block sums of the weights of one row that sees `seen` keys, relative to its maximum; runs of
// up to 64 keys are added one by one, then run by run. Returns weight / total, or 0 for a row that
// sees nothing.
float AddTileRow(const ScoreTile& tile, size_t r, size_t block, float weight, float* sums,
                 size_t blocks) {
  const KeyRows& keys = tile.keys;
  const size_t seen = std::min(keys.count, tile.visible + r);
  std::vector<float> row(seen);
  for (size_t j = 0; j < seen; ++j) {
    float dot = 0;
    for (size_t i = 0; i < keys.dim; ++i) {
      const float query = tile.queries[r * tile.query_stride + i] * tile.scale;
      dot = std::fma(query, Key(keys.data + j * keys.stride, keys.type, i), dot);
    }
    row[j] = dot;
  }
  std::fill_n(sums, blocks, 0.0f);
  const float maximum = RowMaximum(row.data(), seen);
  if (maximum == -std::numeric_limits<float>::infinity()) return 0;
  double total = 0;
  const size_t run = block == 1 ? kTotalBlock : std::min(kTotalBlock, block);
  for (size_t begin = 0; begin < seen;) {
    const size_t end =
        std::min({seen, begin + run, (begin / std::max(block, run) + 1) * std::max(block, run)});
    float sum = 0;
    for (size_t j = begin; j < end; ++j) {
      const float w = Exp(row[j] - maximum);
      sum += w;
      if (block == 1) sums[j] = w;
    }
    if (block != 1) sums[begin / block] += sum;
    total += sum;
    begin = end;
  }
  return static_cast<float>(weight / total);
}

}  // namespace

void AddTileBlockSums(const ScoreTile& tile, size_t block, const float* row_weights,
                      float* sums) noexcept {
  const size_t blocks = (tile.columns() + block - 1) / block;
  std::vector<float> of_row(blocks);
  for (size_t begin = 0; begin < tile.rows; begin += kSubTileRows) {
    std::vector<float> lanes(blocks * kLanes);
    const size_t rows = std::min(kSubTileRows, tile.rows - begin);
    for (size_t r = 0; r < rows; ++r) {
      const float weight = row_weights == nullptr ? 1.0f : row_weights[begin + r];
      const float factor = AddTileRow(tile, begin + r, block, weight, of_row.data(), blocks);
      for (size_t b = 0; b < blocks; ++b) {
        float& lane = lanes[b * kLanes + r % kLanes];
        lane = std::fma(factor, of_row[b], lane);
      }
    }
    for (size_t b = 0; b < blocks; ++b) sums[b] += Fold(&lanes[b * kLanes]);
  }
}

}  // namespace kv::ref
