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
        // At an odd address; infinities and NaNs surround the largest finite value.
        Bytes bytes(1 + 2 * count);
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
        // Bits that belong to no value stay 0.
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

TEST_CASE("8-bit floats are their own symbols, on every target", "[symbols]") {
  for (const uint32_t shift : {7u, 8u}) {
    const SymbolShape shape{.form = {false, shift}, .symbol_bits = 8};
    CHECK(shape.raw_bits() == 0);
    for (const size_t count : {0, 1, 15, 63, 64, 65, 256, 1000}) {
      std::vector<uint8_t> bytes(count), back(count);
      for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(i * 37);
      test::ForEachTarget([&](const std::string& target) {
        INFO(target << ' ' << count << " moved up by " << shift);
        Bytes values(2 * count + 1), joined(2 * count + 1);
        AddSymbols(bytes.data(), count, shape, values.data() + 1);
        for (size_t i = 0; i < count; ++i) {
          const auto half = LoadLE<uint16_t>(values.data() + 1 + 2 * i);
          REQUIRE(half >> 15 == bytes[i] >> 7);
          REQUIRE((half & 0x7fff) == (bytes[i] & 0x7f) << shift);
        }
        REQUIRE(FromSymbols(bytes.data(), count, shape, nullptr, 0, nullptr, joined.data() + 1));
        REQUIRE(joined == values);
        ToSymbols(values.data() + 1, count, shape, back.data());
        REQUIRE(back == bytes);
        ref::ToSymbols(values.data() + 1, count, shape, back.data());
        REQUIRE(back == bytes);
      });
    }
  }
}

TEST_CASE("escapes are listed and restored wherever they lie", "[symbols]") {
  std::mt19937 random(4);
  for (const uint32_t symbol_bits : {6u, 7u, 8u}) {
    const SymbolShape shape{
        .form = {.bfloat = true}, .symbol_bits = symbol_bits, .exponent_base = 100};
    for (const size_t count : {0, 1, 15, 63, 64, 65, 127, 129, 1000}) {
      for (const uint32_t one_in : {1u, 3u, 100u, 100000u}) {
        for (const size_t misaligned : {0, 1, 7}) {
          Bytes values(2 * count + misaligned);
          std::vector<uint8_t> symbols(count + misaligned);
          std::byte* at = values.data() + misaligned;
          for (size_t i = 0; i < count; ++i) {
            const uint32_t exponent =
                random() % one_in == 0 ? random() % 101 : 101 + random() % 31;  // below: escaped
            StoreLE(at + 2 * i,
                    static_cast<uint16_t>(random() % 2 << 15 | exponent << 7 | random() % 128));
          }
          ref::ToSymbols(at, count, shape, symbols.data() + misaligned);
          std::vector<uint8_t> expected(count), listed(count);
          const size_t escapes = ref::ListEscapes(at, symbols.data() + misaligned, count, shape,
                                                  expected.data(), count);
          expected.resize(escapes);
          test::ForEachTarget([&](const std::string& target) {
            INFO(target << ' ' << count << " values, an escape in " << one_in);
            const uint8_t* from = symbols.data() + misaligned;
            listed.assign(count, 0);
            REQUIRE(ListEscapes(at, from, count, shape, listed.data(), count) == escapes);
            listed.resize(escapes);
            REQUIRE(listed == expected);
            // Writes no more escapes than there is room for.
            std::vector<uint8_t> first(escapes, 0xee);
            const size_t room = escapes / 2;
            REQUIRE(ListEscapes(at, from, count, shape, first.data(), room) == escapes);
            REQUIRE(std::equal(first.begin(), first.begin() + static_cast<ptrdiff_t>(room),
                               expected.begin()));
            REQUIRE(std::count(first.begin() + static_cast<ptrdiff_t>(room), first.end(), 0xee) ==
                    static_cast<ptrdiff_t>(escapes - room));

            Bytes restored = values, reference = values;
            for (size_t i = 0; i < count; ++i) {  // symbols do not tell escaped exponents
              if ((from[i] & shape.field_mask()) != 0) continue;
              std::byte* value = restored.data() + misaligned + 2 * i;
              StoreLE(value, static_cast<uint16_t>(LoadLE<uint16_t>(value) | 0x7f80));
            }
            const Bytes unknown = restored;
            size_t used = 0;
            REQUIRE(AddEscapes(from, count, shape, expected.data(), escapes, used,
                               restored.data() + misaligned));
            REQUIRE(used == escapes);
            REQUIRE(restored == values);
            if (escapes == 0) return;
            // One raw byte too few: both implementations stop at the same value.
            restored = reference = unknown;
            size_t used_by_reference = used = 0;
            REQUIRE_FALSE(AddEscapes(from, count, shape, expected.data(), escapes - 1, used,
                                     restored.data() + misaligned));
            REQUIRE_FALSE(ref::AddEscapes(from, count, shape, expected.data(), escapes - 1,
                                          used_by_reference, reference.data() + misaligned));
            REQUIRE(used == used_by_reference);
            REQUIRE(restored == reference);
          });
        }
      }
    }
  }
}

}  // namespace kv::symbols_test
