// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/products.h"

namespace kv {
DeviationProducts ProductsOfDeviations(const float* a, const float* b, const float* mean,
                                       const float* inverse, size_t count) noexcept {
  constexpr size_t kSums = 8;
  float own[kSums] = {}, other[kSums] = {}, both[kSums] = {};
  const auto add = [&](size_t c, size_t i) {
    const float one = (a[c] - mean[c]) * inverse[c], two = (b[c] - mean[c]) * inverse[c];
    own[i] += one * one;
    other[i] += two * two;
    both[i] += one * two;
  };
  size_t c = 0;
  for (; c + kSums <= count; c += kSums) {
    for (size_t i = 0; i < kSums; ++i) add(c + i, i);
  }
  for (size_t i = 0; c + i < count; ++i) add(c + i, i);
  DeviationProducts total;
  for (size_t i = 0; i < kSums; ++i) {
    total.own += own[i];
    total.other += other[i];
    total.both += both[i];
  }
  return total;
}
}  // namespace kv
