// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

// Sums of products of two rows, each channel by its deviation from its mean in units of its own:
// (x - mean) * inverse. Eight sums by turns, added in order: the same bits on every machine.
namespace kv {

struct DeviationProducts {
  float own = 0, other = 0, both = 0;
};
DeviationProducts ProductsOfDeviations(const float* a, const float* b, const float* mean,
                                       const float* inverse, size_t count) noexcept;

namespace ref {
DeviationProducts ProductsOfDeviations(const float* a, const float* b, const float* mean,
                                       const float* inverse, size_t count) noexcept;
}  // namespace ref

}  // namespace kv
