// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/half.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace kv::half_test {

TEST_CASE("binary16 survives the way to binary32 and back for all 65536 patterns", "[half]") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = F16ToF32(half);
    const bool is_nan = (half & 0x7c00) == 0x7c00 && (half & 0x3ff) != 0;
    REQUIRE(std::isnan(wide) == is_nan);
    // A signalling NaN becomes quiet; all other values are unchanged.
    REQUIRE(F32ToF16(wide) == (is_nan ? half | 0x200 : half));
  }
}

TEST_CASE("rounding to binary16 is to nearest, ties to even", "[half]") {
  CHECK(F32ToF16(1.0f + 0x1p-11f) == 0x3c00);             // tie, even below
  CHECK(F32ToF16(1.0f + 3 * 0x1p-11f) == 0x3c02);         // tie, even above
  CHECK(F32ToF16(1.0f + 0x1p-11f + 0x1p-20f) == 0x3c01);  // just above the tie, so rounded up
  CHECK(F32ToF16(65519.996f) == 0x7bff);
  CHECK(F32ToF16(65520.0f) == 0x7c00);
  CHECK(F32ToF16(0x1p-25f) == 0);  // a tie between 0 and the smallest half: 0 is even
  CHECK(F32ToF16(0x1p-25f * 1.0001f) == 1);
  CHECK(F32ToF16(-0x1p-24f) == 0x8001);
}

TEST_CASE("bfloat16 is the upper half of binary32, rounded to even", "[half]") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto value = static_cast<uint16_t>(bits);
    const float wide = BF16ToF32(value);
    REQUIRE(F32ToBF16(wide) == (std::isnan(wide) ? value | 0x40 : value));
  }
  CHECK(F32ToBF16(std::bit_cast<float>(0x3f808000u)) == 0x3f80);
  CHECK(F32ToBF16(std::bit_cast<float>(0x3f818000u)) == 0x3f82);
}

}  // namespace kv::half_test
