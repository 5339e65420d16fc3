// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/hadamard.h"

#include <cmath>

// Fast Walsh-Hadamard transform by plain loops, which compilers vectorise well enough: a dispatched
// kernel was no faster.
namespace kv {
namespace {

// Performs the first two steps at once, for sizes of at least 4.
void TransformFours(float* values, size_t count) {
  for (size_t i = 0; i < count; i += 4) {
    float* v = values + i;
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
  }
}

// `low` and `high` never overlap, which `__restrict` tells the vectoriser.
void Butterflies(float* __restrict low, float* __restrict high, size_t half) {
  for (size_t i = 0; i < half; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a + b;
    high[i] = a - b;
  }
}

void Scale(float* values, size_t count, uint32_t size) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (size_t i = 0; i < count; ++i) values[i] *= scale;
}

}  // namespace

void HadamardUnscaled(float* values, size_t count, uint32_t size) noexcept {
  if (size >= 4) TransformFours(values, count);
  for (size_t half = size >= 4 ? 4 : 1; half < size; half *= 2) {
    for (size_t block = 0; block < count; block += 2 * half)
      Butterflies(values + block, values + block + half, half);
  }
}

void Hadamard(float* values, size_t count, uint32_t size) noexcept {
  HadamardUnscaled(values, count, size);
  Scale(values, count, size);
}

void HadamardScaledFirst(float* values, size_t count, uint32_t size) noexcept {
  Scale(values, count, size);
  HadamardUnscaled(values, count, size);
}

}  // namespace kv
