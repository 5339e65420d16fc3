// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/symbols.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "lib/core/base/bytes.h"
#include "tests/support/targets.h"

namespace kv::symbols_test {

TEST_CASE("the largest magnitude that is finite is found wherever it lies", "[symbols]") {
  for (const bool bfloat : {false, true}) {
    const uint32_t infinity = bfloat ? 0x7f80 : 0x7c00;
    for (const size_t count : {0, 1, 7, 31, 32, 33, 100}) {
      for (size_t at = 0; at < count; ++at) {
        Bytes bytes(1 + 2 * count);  // at an odd address, infinities and NaNs around it
        for (size_t i = 0; i < count; ++i) {
          const uint32_t value = i == at ? infinity - 1 : i % 2 ? infinity + i % 3 : i;
          StoreLE(bytes.data() + 1 + 2 * i, static_cast<uint16_t>(value | (i % 5 ? 0x8000 : 0)));
        }
        test::ForEachTarget([&](const std::string& target) {
          INFO(target << ' ' << count << ' ' << at);
          REQUIRE(LargestFinite(bytes.data() + 1, count, bfloat) == infinity - 1);
        });
      }
    }
    CHECK(LargestFinite(nullptr, 0, bfloat) == 0);
  }
}

TEST_CASE("raw bits can be flipped where their planes hold them", "[symbols]") {
  std::mt19937 random(3);
  for (uint32_t raw_bits = 5; raw_bits <= 10; ++raw_bits) {
    for (const size_t count : {1, 8, 9, 100}) {
      Bytes values(2 * count), planes(RawPlaneBytes(count, raw_bits)), again(planes.size());
      for (std::byte& byte : values) byte = static_cast<std::byte>(random());
      PackRawBits(values.data(), count, raw_bits, planes.data());
      for (size_t at = 0; at < planes.size(); ++at) {
        // What belongs to no value stays 0.
        const Bytes noise(2 * count, std::byte{0xff});
        PackRawBits(noise.data(), count, raw_bits, again.data());
        const std::byte flipped = static_cast<std::byte>(random()) & again[at];
        planes[at] ^= flipped;
        FlipRawBits(count, raw_bits, at, static_cast<uint8_t>(flipped), values.data());
        PackRawBits(values.data(), count, raw_bits, again.data());
        REQUIRE(again == planes);
      }
    }
  }
}

}  // namespace kv::symbols_test
