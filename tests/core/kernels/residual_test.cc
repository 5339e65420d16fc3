// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/residual.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "lib/core/base/bytes.h"
#include "tests/support/targets.h"

namespace kv::residual_test {
namespace {

struct Case {
  std::vector<uint16_t> values, expected;
  std::vector<int16_t> scales;
};

// Draws arbitrary values, paired with equal ones, near ones, far ones and ones of the other sign.
Case MakeCase(size_t count, uint32_t low_zeros, std::mt19937& random) {
  Case c{std::vector<uint16_t>(count), std::vector<uint16_t>(count), std::vector<int16_t>(count)};
  for (size_t i = 0; i < count; ++i) {
    c.expected[i] = static_cast<uint16_t>(random());
    const uint32_t kind = random() % 6;
    const uint32_t value = kind == 0   ? c.expected[i]
                           : kind == 1 ? c.expected[i] ^ 0x8000u
                           : kind == 2 ? random()
                                       : c.expected[i] + (random() >> (random() % 12 + 18));
    c.values[i] = static_cast<uint16_t>(value >> low_zeros << low_zeros);
    c.scales[i] = static_cast<int16_t>(random());
  }
  return c;
}

}  // namespace

TEST_CASE("raw bits are packed at every place, however many sixteen values have", "[residual]") {
  std::mt19937 random(31);
  for (uint8_t most = 16; most < kResidualMagnitudes; ++most) {
    for (size_t begin = 0; begin < 8; ++begin) {
      constexpr size_t kCount = 96;
      std::vector<uint8_t> symbols(kCount);
      std::vector<uint16_t> extras(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        symbols[i] = static_cast<uint8_t>(random() % (most + 1u));
        extras[i] = static_cast<uint16_t>(random() & ((1u << ResidualBitCount(symbols[i])) - 1));
      }
      Bytes expected(2 * kCount + 16);
      const size_t end =
          ref::PackResidualBits(symbols.data(), extras.data(), kCount, expected.data(), begin);
      expected.resize((end + 7) / 8);
      test::ForEachTarget([&](const std::string& target) {
        INFO(target << ' ' << int{most} << ' ' << begin);
        Bytes packed(2 * kCount + 16);
        REQUIRE(PackResidualBits(symbols.data(), extras.data(), kCount, packed.data(), begin) ==
                end);
        packed.resize((end + 7) / 8);
        REQUIRE(packed == expected);
      });
    }
  }
}

TEST_CASE("residuals are those of the reference on every target", "[residual]") {
  std::mt19937 random(11);
  for (const size_t count : {0, 1, 7, 15, 16, 17, 31, 33, 64, 200, 1027}) {
    for (const uint32_t low_zeros : {0u, 1u, 3u, 8u, 15u}) {
      const Case c = MakeCase(count + 1, low_zeros, random);
      // Starts one value into the array: addresses are not vector-aligned.
      const uint16_t *values = c.values.data() + 1, *expected = c.expected.data() + 1;
      const ResidualGrid grid{false, low_zeros};
      std::vector<uint8_t> symbols(count);
      std::vector<uint16_t> extras(count);
      ref::ResidualSymbols(values, expected, count, grid, symbols.data(), extras.data());
      const size_t begin = count % 8;
      Bytes packed(2 * count + 16);
      const size_t end =
          ref::PackResidualBits(symbols.data(), extras.data(), count, packed.data(), begin);
      test::ForEachTarget([&](const std::string& target) {
        INFO(target << ' ' << count << ' ' << low_zeros);
        std::vector<uint8_t> again(count);
        std::vector<uint16_t> more(count);
        ResidualSymbols(values, expected, count, grid, again.data(), more.data());
        REQUIRE(again == symbols);
        REQUIRE(more == extras);
        Bytes bytes(packed.size());
        REQUIRE(PackResidualBits(symbols.data(), extras.data(), count, bytes.data(), begin) == end);
        REQUIRE(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>((end + 7) / 8)) ==
                Bytes(packed.begin(), packed.begin() + static_cast<ptrdiff_t>((end + 7) / 8)));
        const auto decode = [&](auto body) {
          std::vector<uint16_t> out(count);
          ResidualBits bits{packed.data(), (end + 7) / 8, begin};
          REQUIRE(body(symbols.data(), expected, count, grid, bits, out.data()));
          REQUIRE(bits.at == end);
          REQUIRE(std::equal(out.begin(), out.end(), values));
        };
        decode(ResidualValues);
        decode(ref::ResidualValues);
        for (const bool bfloat : {false, true}) {
          std::vector<uint8_t> classes(count), same(count);
          const int32_t factor = static_cast<int32_t>(count % 64) - 32;
          const int16_t* scales = c.scales.data() + 1;
          ref::ClassifyResiduals(expected, scales, count, factor, bfloat, classes.data());
          ClassifyResiduals(expected, scales, count, factor, bfloat, same.data());
          REQUIRE(same == classes);
        }
      });
    }
  }
}

TEST_CASE("residuals that cannot be are refused on every target", "[residual]") {
  const size_t count = 40;
  const ResidualGrid grid;
  std::vector<uint16_t> expected(count, 0x7fff), out(count);
  Bytes stream(200);
  test::ForEachTarget([&](const std::string& target) {
    for (size_t at = 0; at < count; ++at) {
      INFO(target << ' ' << at);
      const auto good = [&](uint8_t symbol, size_t bytes) {
        std::vector<uint8_t> symbols(count);
        symbols[at] = symbol;
        ResidualBits bits{stream.data(), bytes, 0};
        return ResidualValues(symbols.data(), expected.data(), count, grid, bits, out.data());
      };
      CHECK(good(0, 0));
      CHECK(good(126, 200));
      CHECK_FALSE(good(126, 1));  // 13 bits
      CHECK_FALSE(good(127, 200));
      CHECK_FALSE(good(255, 200));
      CHECK_FALSE(good(1, 200));  // 200 exceeds the largest value
    }
  });
}

}  // namespace kv::residual_test
