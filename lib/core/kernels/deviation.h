// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

struct SquaredDeviation {
  double difference = 0;  // sum of (full - old)^2
  double full = 0;        // sum of full^2
};

// Compares one row of two caches. Differences, squares and sums are doubles, added in an order that
// does not depend on the vector width: element i goes to lane i % 16, and lanes are folded as i +
// 8, i + 4, i + 2, i + 1. Any alignment; equal on every SIMD target.
SquaredDeviation DeviationOfRow(const float* full, const float* old, size_t count) noexcept;

namespace ref {
SquaredDeviation DeviationOfRow(const float* full, const float* old, size_t count) noexcept;
}  // namespace ref

}  // namespace kv
