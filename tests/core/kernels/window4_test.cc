// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/window4.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "lib/core/base/bytes.h"
#include "tests/support/targets.h"

namespace kv::window4_test {

TEST_CASE("twelve bits and escapes are the reference's on every target", "[window4]") {
  std::mt19937 random(3);
  for (const size_t count : {0, 1, 2, 15, 16, 17, 31, 33, 64, 333, 1000}) {
    for (const uint32_t rare : {1, 5, 1000000}) {  // one exponent in `rare` is arbitrary
      for (const uint32_t base : {0u, 100u, kMaxWindow4Base}) {
        INFO(count << " values, base " << base << ", rare " << rare);
        Bytes values(2 * count + 1);
        std::byte* at = values.data() + 1;  // any alignment
        for (size_t i = 0; i < count; ++i) {
          const uint32_t exponent = random() % rare == 0 ? random() % 256 : base + random() % 15;
          StoreLE(at + 2 * i, static_cast<uint16_t>((random() & 0x807f) | exponent << 7));
        }
        const size_t half = Window4NibbleBytes(count);
        Bytes fields(count), nibbles(half), escapes(count);
        const size_t escaped =
            ref::Window4Encode(at, count, base, fields.data(), nibbles.data(), escapes.data());
        escapes.resize(escaped);
        test::ForEachTarget([&](const std::string& target) {
          INFO(target);
          Bytes own_fields(count), own_nibbles(half, std::byte{0xee}), own_escapes(count);
          REQUIRE(Window4Encode(at, count, base, own_fields.data(), own_nibbles.data(),
                                own_escapes.data()) == escaped);
          own_escapes.resize(escaped);
          REQUIRE(own_fields == fields);
          REQUIRE(own_nibbles == nibbles);
          REQUIRE(own_escapes == escapes);
          Bytes back(2 * count);
          const auto decode = [&](auto function, size_t escape_count) {
            return function(fields.data(), nibbles.data(), count, base, escapes.data(),
                            escape_count, back.data());
          };
          REQUIRE(decode(Window4Decode, escaped));
          REQUIRE(std::equal(back.begin(), back.end(), at));
          REQUIRE(decode(ref::Window4Decode, escaped));
          REQUIRE(std::equal(back.begin(), back.end(), at));
          if (escaped > 0) {
            REQUIRE_FALSE(decode(Window4Decode, escaped - 1));
            REQUIRE_FALSE(decode(ref::Window4Decode, escaped - 1));
          }
        });
      }
    }
  }
}

}  // namespace kv::window4_test
