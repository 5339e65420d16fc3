// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/quantise.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/kernels/dequantise.h"
#include "tests/support/targets.h"

namespace kv::quantise_test {
namespace {

constexpr DType kBlockTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                                 DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL};
constexpr Q8Rounding kRoundings[] = {Q8Rounding::kAvx, Q8Rounding::kReference, Q8Rounding::kArm};

// Returns rows at every scale, with ties of q8_0 (odd multiples of d / 2), zeros and constants.
std::vector<float> Rows(size_t blocks) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(blocks * 32);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t block = i / 32;
    const float scale = std::ldexp(1.0f, static_cast<int>(block % 25) - 14);
    if (block % 5 == 0) {
      values[i] =
          scale * (i % 32 == 0 ? 127.0f : 0.5f * static_cast<float>(random() % 254) - 63.5f);
    } else if (block % 17 == 3) {
      values[i] = block % 2 == 0 ? 0.0f : scale;
    } else {
      values[i] = scale * normal(random);
    }
  }
  return values;
}

Bytes Quantised(DType dtype, std::span<const float> values, Q8Rounding rounding) {
  Bytes out(kv::BytesOf(dtype, values.size()));
  QuantiseBlocks(dtype, values, out.data(), rounding);
  return out;
}

std::vector<float> TrickyFloats() {
  std::vector<float> values;
  for (uint32_t code = 0; code < 128; ++code) {
    for (const float at :
         {E4M3ToF32(static_cast<uint8_t>(code)), E5M2ToF32(static_cast<uint8_t>(code))}) {
      // Each code, the midpoint to the next one, and the values beside both.
      for (const uint32_t half : {0u, 1u << 19, 1u << 20}) {
        for (const uint32_t off : {0u, 1u, 0xffffffffu}) {
          const uint32_t bits = std::bit_cast<uint32_t>(at) + half + off;
          values.push_back(std::bit_cast<float>(bits));
          values.push_back(std::bit_cast<float>(bits | 0x80000000u));
        }
      }
    }
  }
  for (const float more : {464.0f, 465.0f, 61439.0f, 61440.0f, 1e30f, INFINITY, 0x1p-17f, 0x1p-10f})
    values.push_back(more);
  std::mt19937 random(5);
  for (int i = 0; i < 20001; ++i)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  return values;
}

}  // namespace

TEST_CASE("block quantisers equal their reference on every target", "[quantise]") {
  std::vector<float> values = Rows(240);
  for (const DType dtype : kBlockTypes) {
    for (const Q8Rounding rounding : kRoundings) {
      Bytes expected(kv::BytesOf(dtype, values.size()));
      ref::QuantiseBlocks(dtype, values, expected.data(), rounding);
      test::ForEachTarget([&](const std::string& target) {
        INFO(target << " " << Name(dtype) << " rounding " << static_cast<int>(rounding));
        CHECK(Quantised(dtype, values, rounding) == expected);
      });
    }
  }
  // Both sides are misaligned, and blocks that no engine defines do not disturb the next one.
  std::vector<float> shifted(33);
  std::copy_n(values.begin(), 32, shifted.begin() + 1);
  Bytes expected(34), got(35);
  ref::QuantiseBlocks(DType::kQ8_0, std::span(shifted).subspan(1), expected.data(),
                      Q8Rounding::kAvx);
  QuantiseBlocks(DType::kQ8_0, std::span(shifted).subspan(1), got.data() + 1);
  CHECK(std::equal(expected.begin(), expected.end(), got.begin() + 1));
  std::vector<float> bad(64, 1.0f);
  bad[3] = NAN;
  bad[4] = INFINITY;
  for (const DType dtype : kBlockTypes) {
    const Bytes bytes = Quantised(dtype, bad, Q8Rounding::kAvx);
    std::vector<float> back(64);
    ToFloats(dtype, bytes, back);
    INFO(Name(dtype));
    CHECK(back[32] == Approx(1.0f).epsilon(0.05));
  }
}

TEST_CASE("a block type comes back within its step", "[quantise]") {
  const std::vector<float> values = Rows(240);
  for (const DType dtype : kBlockTypes) {
    const Bytes bytes = Quantised(dtype, values, Q8Rounding::kAvx);
    std::vector<float> back(values.size());
    ToFloats(dtype, bytes, back);
    // Codes reach the full range with the sign of the largest magnitude; the other sign of
    // symmetric types reaches one less.
    const double step = dtype == DType::kQ8_0     ? 0.51 / 127
                        : dtype == DType::kQ5_0   ? 1.01 / 16
                        : dtype == DType::kQ5_1   ? 1.02 / 31
                        : dtype == DType::kQ4_1   ? 1.02 / 15
                        : dtype == DType::kIQ4_NL ? 0.25
                                                  : 1.01 / 8;
    for (size_t block = 0; block < values.size(); block += 32) {
      double most = 0;
      for (size_t i = 0; i < 32; ++i) most = std::max(most, std::fabs(double{values[block + i]}));
      for (size_t i = block; i < block + 32; ++i) {
        INFO(Name(dtype) << " " << block << " " << i);
        // The second term is the error of rounding d and m to halves.
        REQUIRE(std::fabs(back[i] - values[i]) <= step * most + 2e-3 * most + 1e-5);
      }
    }
  }
}

TEST_CASE("a searched scale is no worse than the first one", "[quantise]") {
  const std::vector<float> values = Rows(240);
  Bytes searched(kv::BytesOf(DType::kIQ4_NL, values.size()));
  QuantiseIq4NlSearched(values, searched.data());
  const Bytes plain = Quantised(DType::kIQ4_NL, values, Q8Rounding::kAvx);
  const auto error = [&](const Bytes& bytes) {
    std::vector<float> back(values.size());
    ToFloats(DType::kIQ4_NL, bytes, back);
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double x = values[i],
                   scale = std::ldexp(1.0, -2 * (static_cast<int>(i / 32 % 25) - 14));
      // The error is weighted by x^2, as in the search.
      sum += (x - back[i]) * (x - back[i]) * x * x * scale * scale;
    }
    return sum;
  };
  CHECK(error(searched) < error(plain));
  CHECK(searched != plain);
}

TEST_CASE("8-bit floats equal their reference on every target", "[quantise]") {
  const std::vector<float> values = TrickyFloats();
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (const Float8Overflow overflow : {Float8Overflow::kCast, Float8Overflow::kSaturate}) {
      for (const float scale : {1.0f, 0.0023f}) {
        std::vector<uint8_t> expected(values.size());
        ref::QuantiseFloat8(dtype, values, scale, overflow, expected.data());
        test::ForEachTarget([&](const std::string& target) {
          INFO(target << " " << Name(dtype) << " scale " << scale);
          for (const size_t skip : {0, 1, 7}) {
            std::vector<uint8_t> got(values.size() - skip);
            QuantiseFloat8(dtype, std::span(values).subspan(skip), scale, overflow, got.data());
            CHECK(std::equal(got.begin(), got.end(), expected.begin() + static_cast<int>(skip)));
          }
        });
      }
    }
    std::vector<uint8_t> codes(256);
    for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
    std::vector<float> expected(256);
    ref::DequantiseFloat8(dtype, codes, 3.0f, expected.data());
    test::ForEachTarget([&](const std::string& target) {
      INFO(target << " " << Name(dtype));
      std::vector<float> got(256);
      DequantiseFloat8(dtype, codes, 3.0f, got.data());
      CHECK(std::memcmp(got.data(), expected.data(), 1024) == 0);
    });
    // The value of every finite code is stored as that code.
    for (uint32_t code = 0; code < 256; ++code) {
      const float value = dtype == DType::kF8E4M3 ? E4M3ToF32(static_cast<uint8_t>(code))
                                                  : E5M2ToF32(static_cast<uint8_t>(code));
      if (!std::isfinite(value)) continue;
      uint8_t back = 0;
      QuantiseFloat8(dtype, {&value, 1}, 1, Float8Overflow::kCast, &back);
      CHECK(back == code);
    }
  }
}

TEST_CASE("q8_0 blocks are read alike on every target", "[quantise]") {
  const std::vector<float> values = Rows(65);
  const Bytes bytes = Quantised(DType::kQ8_0, values, Q8Rounding::kAvx);
  std::vector<float> expected(values.size());
  ref::DequantiseQ8_0(bytes.data(), expected);
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    std::vector<float> got(values.size());
    DequantiseQ8_0(bytes.data(), got);
    CHECK(got == expected);
  });
}

}  // namespace kv::quantise_test
