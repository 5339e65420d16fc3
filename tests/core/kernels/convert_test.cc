// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/convert.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "lib/core/kernels/reference.h"
#include "tests/support/targets.h"

namespace kv::convert_test {
namespace {

// Returns every 16-bit pattern, at an odd address.
Bytes AllPatterns() {
  Bytes bytes(1 + 2 * 65536);
  for (size_t i = 0; i < 65536; ++i) StoreLE(bytes.data() + 1 + 2 * i, static_cast<uint16_t>(i));
  return bytes;
}

// Returns floats at and around every value where rounding can go wrong, of both signs, then random
// bits.
std::vector<float> TrickyFloats() {
  std::vector<float> values;
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (uint32_t bit = 0; bit < 23; ++bit) {
      for (const int step : {-1, 0, 1}) {
        const uint32_t mantissa = ((1u << bit) + static_cast<uint32_t>(step)) & 0x7fffff;
        for (const uint32_t pattern : {mantissa, mantissa ^ 0x7fffff}) {
          values.push_back(std::bit_cast<float>(exponent << 23 | pattern));
          values.push_back(std::bit_cast<float>(0x80000000u | exponent << 23 | pattern));
        }
      }
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  // Adds the midpoint of each pair of neighbouring halves, and the floats beside it.
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const float low = F16ToF32(static_cast<uint16_t>(half));
    const float high = half == 0x7bff ? 65536.0f : F16ToF32(static_cast<uint16_t>(half + 1));
    const uint32_t middle = std::bit_cast<uint32_t>(low + (high - low) / 2);
    for (const uint32_t near : {middle - 1, middle, middle + 1})
      values.push_back(std::bit_cast<float>(near));
  }
  return values;
}

Bytes BytesOf(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

using Widen = void (*)(const std::byte*, float*, size_t) noexcept;
using Narrow = void (*)(const float*, std::byte*, size_t) noexcept;

void CheckWiden(Widen widen, Widen reference) {
  const Bytes from = AllPatterns();
  std::vector<float> expected(65536), got(65536);
  reference(from.data() + 1, expected.data(), expected.size());
  widen(from.data() + 1, got.data(), got.size());
  CHECK((BytesOf(got) == BytesOf(expected)));
  for (size_t count = 0; count < 4 * 16 + 4; ++count) {
    for (size_t offset = 0; offset < 4; ++offset) {
      std::vector<float> some(count + 1, 42.0f), wanted(count + 1, 42.0f);
      const std::byte* at = from.data() + 20000 + offset;
      reference(at, wanted.data(), count);
      widen(at, some.data(), count);
      CHECK((BytesOf(some) == BytesOf(wanted)));
    }
  }
}

void CheckNarrow(Narrow narrow, Narrow reference) {
  const std::vector<float> from = TrickyFloats();
  Bytes expected(2 * from.size() + 1), got(2 * from.size() + 1);
  reference(from.data(), expected.data() + 1, from.size());
  narrow(from.data(), got.data() + 1, from.size());
  CHECK((got == expected));
  for (size_t count = 0; count < 4 * 32 + 4; ++count) {
    for (size_t offset = 0; offset < 4; ++offset) {
      Bytes some(2 * count + 8, std::byte{7}), wanted(2 * count + 8, std::byte{7});
      reference(from.data() + 9000 + offset, wanted.data() + offset, count);
      narrow(from.data() + 9000 + offset, some.data() + offset, count);
      CHECK(some == wanted);
    }
  }
}

TEST_CASE("16-bit floats widen to the same bits on every target", "[kernels]") {
  test::ForEachTarget([](const std::string& target) {
    INFO(target);
    CheckWiden(HalfToFloat, ref::HalfToFloat);
    CheckWiden(BFloatToFloat, ref::BFloatToFloat);
  });
}

TEST_CASE("floats narrow to the same bits on every target", "[kernels]") {
  test::ForEachTarget([](const std::string& target) {
    INFO(target);
    CheckNarrow(FloatToHalf, ref::FloatToHalf);
    CheckNarrow(FloatToBFloat, ref::FloatToBFloat);
  });
}

// Outputs of 16 MiB and more bypass the caches.
TEST_CASE("large conversions equal small ones", "[kernels]") {
  constexpr size_t kCount = (9 << 20) + 5, kPiece = 10007;
  const std::vector<float> tricky = TrickyFloats();
  std::vector<float> floats(kCount);
  for (size_t i = 0; i < kCount; ++i) floats[i] = tricky[i % tricky.size()];
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    for (const bool bfloat : {false, true}) {
      const auto narrow = bfloat ? FloatToBFloat : FloatToHalf;
      const auto widen = bfloat ? BFloatToFloat : HalfToFloat;
      Bytes large(2 * kCount + 2), small(large.size());
      std::vector<float> wide(kCount), pieces(kCount);
      narrow(floats.data(), large.data() + 2, kCount);
      widen(large.data() + 2, wide.data(), kCount);
      for (size_t at = 0; at < kCount; at += kPiece) {
        const size_t count = std::min(kPiece, kCount - at);
        narrow(floats.data() + at, small.data() + 2 + 2 * at, count);
        widen(small.data() + 2 + 2 * at, pieces.data() + at, count);
      }
      CHECK((large == small));
      CHECK((BytesOf(wide) == BytesOf(pieces)));
    }
  });
}

}  // namespace
}  // namespace kv::convert_test
