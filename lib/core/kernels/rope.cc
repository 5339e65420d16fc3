// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/rope.h"

// These are plain loops, because rotating keys is so small a part of any command that a dispatched
// kernel made none faster.
namespace kv {
namespace {

void RotateHalves(float* __restrict first, float* __restrict second, size_t pairs,
                  const double* cosines, const double* sines) {
  for (size_t i = 0; i < pairs; ++i) {
    const double x = first[i], y = second[i];
    first[i] = static_cast<float>(x * cosines[i] - y * sines[i]);
    second[i] = static_cast<float>(y * cosines[i] + x * sines[i]);
  }
}

void RotateNeighbours(float* values, size_t pairs, const double* cosines, const double* sines) {
  for (size_t i = 0; i < pairs; ++i) {
    const double x = values[2 * i], y = values[2 * i + 1];
    values[2 * i] = static_cast<float>(x * cosines[i] - y * sines[i]);
    values[2 * i + 1] = static_cast<float>(y * cosines[i] + x * sines[i]);
  }
}

}  // namespace

void RotatePairs(float* values, size_t pairs, RopePairs style, const double* cosines,
                 const double* sines) noexcept {
  if (style == RopePairs::kHalves) {
    RotateHalves(values, values + pairs, pairs, cosines, sines);
  } else {
    RotateNeighbours(values, pairs, cosines, sines);
  }
}

}  // namespace kv
