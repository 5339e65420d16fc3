// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "lib/core/kernels/residual.h"
#include "tests/support/targets.h"

namespace kv::error_scale_test {
namespace {

uint32_t CountBits(float x) { return std::bit_cast<uint32_t>(x); }
std::vector<uint32_t> CountBits(const std::vector<float>& all) {
  std::vector<uint32_t> bits;
  for (const float x : all) bits.push_back(CountBits(x));
  return bits;
}

// Returns floats of all magnitudes, including infinities, NaNs and values that overflow any sum.
std::vector<float> SomeFloats(size_t count, std::mt19937& random) {
  constexpr float kSpecial[] = {std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN(), 3e38f, -3e38f, 1e-42f};
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> floats(count);
  for (float& x : floats) x = random() % 40 == 0 ? kSpecial[random() % 5] : normal(random);
  return floats;
}

}  // namespace

TEST_CASE("errors, their means and sums are those of the reference on every target") {
  std::mt19937 random(29);
  for (const size_t count : {1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 47, 64, 192, 1027}) {
    // Starts one value into the array: addresses are not vector-aligned.
    const std::vector<float> values = SomeFloats(count + 1, random),
                             expected = SomeFloats(count + 1, random),
                             weights = SomeFloats(count + 1, random);
    std::vector<float> errors(count), sums(count);
    ref::AbsoluteErrors(values.data() + 1, expected.data() + 1, count, errors.data());
    const float mean = ref::MeanWeighted(errors.data(), weights.data() + 1, count);
    for (size_t i = 0; i < count; ++i) sums[i] = std::fabs(values[i]) < 1e30f ? values[i] : 1.0f;
    const std::vector<float> before = sums;
    ref::AddWeighted(errors.data(), 0.3f, count, sums.data());
    test::ForEachTarget([&](const std::string& target) {
      INFO(target << ' ' << count);
      std::vector<float> again(count), added = before;
      AbsoluteErrors(values.data() + 1, expected.data() + 1, count, again.data());
      REQUIRE(CountBits(again) == CountBits(errors));
      REQUIRE(CountBits(MeanWeighted(errors.data(), weights.data() + 1, count)) == CountBits(mean));
      AddWeighted(errors.data(), 0.3f, count, added.data());
      REQUIRE(CountBits(added) == CountBits(sums));
    });
  }
}

TEST_CASE("an outlier counts as 64, and an error that is no number as none") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), values[] = {1, nan, 3e38f, -2},
              expected[] = {0.5f, 1, -3e38f, 2}, weights[] = {2, 1, 1, 1e9f};
  float errors[4];
  AbsoluteErrors(values, expected, 4, errors);
  CHECK(errors[0] == 0.5f);
  CHECK(errors[1] == 0.0f);
  CHECK(errors[2] == 0.0f);
  CHECK(errors[3] == 4.0f);
  CHECK(MeanWeighted(errors, weights, 4) == (1.0f + 0 + 0 + 64) / 4);
}

}  // namespace kv::error_scale_test
