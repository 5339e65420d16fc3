// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/deviation.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/targets.h"

namespace kv::deviation_test {
namespace {

TEST_CASE("the deviation of a row is the sum of its squared differences", "[deviation]") {
  const std::vector<float> full = {1, 2, 3}, old = {1, 0, 4};
  const SquaredDeviation got = DeviationOfRow(full.data(), old.data(), 3);
  CHECK(got.difference == 5);
  CHECK(got.full == 14);
  CHECK(DeviationOfRow(full.data(), old.data(), 0).full == 0);
}

TEST_CASE("squares beyond the range of float stay finite, infinities do not", "[deviation]") {
  const std::vector<float> huge = {3e38f}, other = {-3e38f}, infinite = {INFINITY};
  CHECK(DeviationOfRow(huge.data(), other.data(), 1).difference == Approx(3.6e77));
  CHECK(std::isinf(DeviationOfRow(huge.data(), infinite.data(), 1).difference));
  CHECK(std::isnan(DeviationOfRow(infinite.data(), infinite.data(), 1).difference));
}

TEST_CASE("every target sums to the reference's bits", "[deviation]") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (size_t count = 0; count < 70; ++count) {
    for (const size_t shift : {0u, 1u}) {
      std::vector<float> full(count + 1), old(count + 1);
      for (float& v : full) v = normal(random);
      for (float& v : old) v = normal(random);
      const SquaredDeviation want = ref::DeviationOfRow(full.data() + shift, old.data() + shift,
                                                        count - std::min(count, shift));
      test::ForEachTarget([&](const std::string& target) {
        INFO(target << " count " << count << " shift " << shift);
        const SquaredDeviation got =
            DeviationOfRow(full.data() + shift, old.data() + shift, count - std::min(count, shift));
        CHECK(got.difference == want.difference);
        CHECK(got.full == want.full);
      });
    }
  }
}

}  // namespace
}  // namespace kv::deviation_test
