// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <random>

#include "lib/core/base/bytes.h"
#include "lib/core/kernels/planes.h"

namespace kv::rotl16_test {
namespace {

constexpr std::byte kUntouched{0x5a};

Bytes RandomBytes(size_t size) {
  std::mt19937 random(static_cast<uint32_t>(size));
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Returns the words of `bytes` from `begin` on, each rotated left by `places`.
Bytes Reference(const Bytes& bytes, size_t begin, size_t words, int places) {
  Bytes out(2 * words);
  for (size_t i = 0; i < words; ++i) {
    const auto word = LoadLE<uint16_t>(bytes.data() + begin + 2 * i);
    StoreLE(out.data() + 2 * i, std::rotl(word, places));
  }
  return out;
}

}  // namespace

TEST_CASE("words rotate by one bit either way, at any length and alignment", "[kernels]") {
  for (size_t words = 0; words <= 140; ++words) {
    for (const size_t begin : {0, 1, 3}) {
      const Bytes from = RandomBytes(begin + 2 * words);
      const Bytes left = Reference(from, begin, words, 1);
      const Bytes right = Reference(from, begin, words, -1);
      INFO(words << " words, " << begin << " bytes off");
      Bytes to(2 * words + 1, kUntouched);
      Rotl16(from.data() + begin, words, to.data());
      REQUIRE(std::equal(left.begin(), left.end(), to.begin()));
      REQUIRE(to.back() == kUntouched);
      Rotr16(from.data() + begin, words, to.data());
      REQUIRE(std::equal(right.begin(), right.end(), to.begin()));
      REQUIRE(to.back() == kUntouched);
      // Rotates in place, forwards and back.
      Bytes same = from;
      std::byte* at = same.data() + begin;
      Rotl16(at, words, at);
      REQUIRE(std::equal(left.begin(), left.end(), at));
      Rotr16(at, words, at);
      REQUIRE(same == from);
    }
  }
}

}  // namespace kv::rotl16_test
