// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/lms.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>

#include "lib/core/base/bytes.h"
#include "tests/support/targets.h"

namespace kv::lms_test {
namespace {

// Arrays of a predictor, with any values that a frame could produce.
struct State {
  explicit State(size_t padded) : floats(14 * padded) {
    channels.padded = padded;
    const auto array = [&](size_t i) { return floats.data() + i * padded; };
    channels.x1 = array(0);
    channels.p1 = array(1);
    channels.x2 = array(2);
    channels.p2 = array(3);
    for (size_t w = 0; w < 5; ++w) channels.weights[w] = array(4 + w);
    channels.mean = array(9);
    channels.sigma = array(10);
    channels.prediction = array(11);
    contexts.resize(padded);
    signs.resize(padded);
  }
  std::vector<float> floats;
  LmsChannels channels;
  std::vector<uint16_t> contexts;
  std::vector<uint8_t> signs;
};

void Fill(State& state, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const float odd[] = {0.0f, -0.0f, 1e-30f, -1e-38f, 1e30f, INFINITY, -INFINITY};
  for (float& value : state.floats) value = random() % 50 == 0 ? odd[random() % 7] : normal(random);
  for (size_t i = 0; i < state.channels.padded; ++i)
    state.channels.sigma[i] = std::abs(state.channels.sigma[i]);
}

// Compares bit patterns, but all NaNs are equal: the processor decides which NaN an operation
// returns, and no decoded value depends on that.
std::vector<uint32_t> Bits(const std::vector<float>& floats) {
  std::vector<uint32_t> bits(floats.size());
  std::memcpy(bits.data(), floats.data(), 4 * bits.size());
  for (uint32_t& one : bits) {
    if ((one & 0x7fffffff) > 0x7f800000) one = 0x7fc00000;
  }
  return bits;
}

}  // namespace

TEST_CASE("predictions and what is learned are the reference's to the last bit", "[lms]") {
  for (const size_t padded : {16, 32, 48, 112}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      State expected(padded);
      Fill(expected, seed);
      std::vector<float> x(padded);
      std::mt19937 random(seed + 100);
      std::normal_distribution<float> normal;
      for (float& value : x) value = normal(random);
      const std::vector<float> start = expected.floats;
      ref::LmsPredict(expected.channels, expected.contexts.data(), expected.signs.data());
      ref::LmsUpdate(expected.channels, x.data(), 1.0f / 7, 1.0f / 32);
      for (const uint16_t context : expected.contexts) REQUIRE(context < kLmsFirstRow);
      test::ForEachTarget([&](const std::string& target) {
        INFO(target << ", " << padded << " channels, seed " << seed);
        State got(padded);
        std::copy(start.begin(), start.end(), got.floats.begin());
        LmsPredict(got.channels, got.contexts.data(), got.signs.data());
        LmsUpdate(got.channels, x.data(), 1.0f / 7, 1.0f / 32);
        REQUIRE(got.contexts == expected.contexts);
        REQUIRE(got.signs == expected.signs);
        REQUIRE(Bits(got.floats) == Bits(expected.floats));
      });
    }
  }
}

TEST_CASE("every half is loaded alike, scaled, and 0 if it is not finite", "[lms]") {
  Bytes values(2 * 65536);
  for (uint32_t i = 0; i < 65536; ++i) StoreLE(values.data() + 2 * i, static_cast<uint16_t>(i));
  for (const bool bfloat : {false, true}) {
    for (const float scale : {1.0f, 0x1p112f, 0x1p-126f}) {
      for (const size_t count : {65536, 65525, 3}) {
        const size_t padded = (count + 15) / 16 * 16;
        std::vector<float> expected(padded, 7), got(padded, 7);
        ref::LmsLoad(values.data(), count, bfloat, scale, expected.data(), padded);
        if (bfloat && scale == 1.0f && count == 65536) {
          REQUIRE(expected[0x3f80] == 1.0f);
          REQUIRE(expected[0x7f80] == 0.0f);
        }
        test::ForEachTarget([&](const std::string& target) {
          INFO(target << ' ' << bfloat << ' ' << scale << ' ' << count);
          std::fill(got.begin(), got.end(), 7.0f);
          LmsLoad(values.data(), count, bfloat, scale, got.data(), padded);
          REQUIRE(std::memcmp(got.data(), expected.data(), 4 * padded) == 0);
        });
      }
    }
  }
}

}  // namespace kv::lms_test
