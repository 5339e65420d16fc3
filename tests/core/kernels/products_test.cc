// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "lib/core/kernels/similarity.h"

namespace kv::products_test {

TEST_CASE("products of deviations go to eight sums by turns", "[products]") {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const size_t count : {0, 1, 7, 8, 9, 32, 67, 288}) {
    INFO(count);
    std::vector<float> rows(4 * count);
    for (float& value : rows) value = normal(random);
    const float *a = rows.data(), *b = a + count, *mean = b + count, *inverse = mean + count;
    float own[8] = {}, other[8] = {}, both[8] = {};
    for (size_t c = 0; c < count; ++c) {
      const float one = (a[c] - mean[c]) * inverse[c], two = (b[c] - mean[c]) * inverse[c];
      own[c % 8] += one * one;
      other[c % 8] += two * two;
      both[c % 8] += one * two;
    }
    DeviationProducts expected;
    for (size_t i = 0; i < 8; ++i) {
      expected.own += own[i];
      expected.other += other[i];
      expected.both += both[i];
    }
    const DeviationProducts got = ProductsOfDeviations(a, b, mean, inverse, count);
    CHECK(got.own == expected.own);
    CHECK(got.other == expected.other);
    CHECK(got.both == expected.both);
  }
}

}  // namespace kv::products_test
