// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

struct SquaredDeviation {
  double difference = 0;  // sum of (full - old)^2
  double full = 0;        // sum of full^2
};

// One row of two caches. Differences, squares and sums in double, in an order that does not depend
// on vector width: element i on lane i % 16, lanes folded as i + 8, i + 4, i + 2, i + 1. Any
// alignment; equal on every SIMD target.
SquaredDeviation DeviationOfRow(const float* full, const float* old, size_t count) noexcept;

namespace ref {
SquaredDeviation DeviationOfRow(const float* full, const float* old, size_t count) noexcept;
}  // namespace ref

}  // namespace kv
