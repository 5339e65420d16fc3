// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/ordered_product.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "tests/support/targets.h"

namespace kv::ordered_product_test {

TEST_CASE("products are added in order, each rounded by itself", "[product]") {
  // 2^24 + 1 rounds to 2^24, so the small products count only if they come first.
  const std::vector<float> factors = {1, 1, 1}, vectors = {1, 1, 16777216};
  float sum = 0;
  AddProducts(factors.data(), 1, 3, vectors.data(), 1, 1, &sum);
  CHECK(sum == 16777218);
  const std::vector<float> turned = {16777216, 1, 1};
  sum = 0;
  AddProducts(factors.data(), 1, 3, turned.data(), 1, 1, &sum);
  CHECK(sum == 16777216);
  // A fused product would keep the 1 that (1 + 2^-12)^2 - 1 - 2^-11 leaves in the last place.
  const float near = 1 + std::ldexp(1.0f, -12);
  sum = -(1 + std::ldexp(1.0f, -11));
  AddProducts(&near, 1, 1, &near, 1, 1, &sum);
  CHECK(sum == 0);
}

TEST_CASE("every target has the reference's bits for all sizes and alignments", "[product]") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const size_t rows : {0u, 1u, 3u, 4u, 9u}) {
    for (const size_t count : {0u, 1u, 17u, 256u, 300u}) {
      for (const size_t columns : {1u, 7u, 16u, 33u, 70u}) {
        const size_t stride = columns + 3, shift = columns % 3;
        std::vector<float> factors(rows * count + shift), vectors(count * stride + shift),
            sums(rows * columns + shift);
        for (auto* values : {&factors, &vectors, &sums}) {
          for (float& value : *values) value = normal(random);
        }
        std::vector<float> want = sums;
        ref::AddProducts(factors.data() + shift, rows, count, vectors.data() + shift, stride,
                         columns, want.data() + shift);
        test::ForEachTarget([&](const std::string& target) {
          INFO(target << " rows " << rows << " count " << count << " columns " << columns);
          std::vector<float> got = sums;
          AddProducts(factors.data() + shift, rows, count, vectors.data() + shift, stride, columns,
                      got.data() + shift);
          CHECK(std::ranges::equal(std::as_bytes(std::span(got)), std::as_bytes(std::span(want))));
        });
      }
    }
  }
}

}  // namespace kv::ordered_product_test
