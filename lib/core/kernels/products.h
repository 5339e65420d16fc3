// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Sums over channels of products of two rows' deviations.
struct DeviationProducts {
  float own = 0;    // of the first row with itself
  float other = 0;  // of the second row with itself
  float both = 0;   // of the first row with the second
};

// Compares two rows of `count` channels by their deviations, (x - mean[c]) * inverse[c] in channel
// c. Channel c is added to sum c % 8, and the eight sums are then added in order, so that the
// result has the same bits on every machine.
DeviationProducts ProductsOfDeviations(const float* a, const float* b, const float* mean,
                                       const float* inverse, size_t count) noexcept;

}  // namespace kv
