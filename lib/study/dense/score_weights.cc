// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/core/base/error.h"
#include "lib/core/kernels/convert.h"
#include "lib/study/dense/score.h"

namespace kv {
namespace {

constexpr size_t kFlashKeys = 64;

}  // namespace

void WidenKeys(const KeyRows& keys, size_t begin, size_t count, float* out) noexcept {
  for (size_t i = 0; i < count; ++i) {
    const std::byte* row = keys.data + (begin + i) * keys.stride;
    float* to = out + i * keys.dim;
    switch (keys.type) {
      case KeyType::kF16:
        HalfToFloat(row, to, keys.dim);
        break;
      case KeyType::kBF16:
        BFloatToFloat(row, to, keys.dim);
        break;
      case KeyType::kF32:
        std::memcpy(to, row, keys.dim * sizeof(float));
        break;
    }
  }
}

void AddRowBlockSums(float* row, size_t count, size_t block, double weight, float* sums) noexcept {
  // In place is safe: block b is read before its sum is written to row[b], since b <= b * block.
  const float maximum = RowMaximum(row, count);
  if (maximum == -INFINITY) return;  // the row sees no key
  const double total = ExpBlockSums(row, count, maximum, block, row);
  AddScaled(row, (count + block - 1) / block, static_cast<float>(weight / total), sums);
}

void WeighRow(float* row, size_t count, WeightRule rule) noexcept {
  if (rule == WeightRule::kSoftmax) {
    const float maximum = RowMaximum(row, count);
    if (maximum == -INFINITY) {
      std::fill_n(row, count, 0.0f);
      return;
    }
    ExpRow(row, count, maximum);
    float total = 0;
    for (size_t i = 0; i < count; ++i) total += row[i];
    total += 1e-20f;
    for (size_t i = 0; i < count; ++i) row[i] /= total;
    return;
  }
  float maximum = -INFINITY;
  for (size_t begin = 0; begin < count; begin += kFlashKeys) {
    const size_t keys = std::min(kFlashKeys, count - begin);
    maximum = std::max(maximum, RowMaximum(row + begin, keys));
    if (maximum == -INFINITY) {
      std::fill_n(row + begin, keys, 0.0f);
    } else {
      ExpRow(row + begin, keys, maximum);
    }
  }
}

void AddInOrder(const float* weights, size_t count, size_t block, float* sums) noexcept {
  for (size_t begin = 0; begin < count; begin += block, ++sums) {
    const size_t end = std::min(count, begin + block);
    for (size_t i = begin; i < end; ++i) *sums += weights[i];
  }
}

}  // namespace kv
