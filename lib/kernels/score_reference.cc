// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lib/base/bytes.h"
#include "lib/base/half.h"
#include "lib/kernels/score.h"

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

// 2^n * e^r with |r| <= ln 2 / 2: n by adding and subtracting 1.5 * 2^23, r in two steps, then the
// minimax polynomial of Cephes' expf. Every operation rounds on its own, so that a fused
// multiply-add of some target cannot change a bit.
float Exp(float x) noexcept {
  if (x < -87.0f) return 0.0f;
  const float shifted = x * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = p * (r * r) + r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;
  return y * std::bit_cast<float>(power);
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

}  // namespace kv::ref
