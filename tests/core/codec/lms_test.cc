// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/context/lms.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/base/half.h"
#include "tests/support/damage.h"
#include "tests/support/targets.h"

namespace kv::lms_test {
namespace {

// Draws pairs of channels, `distance` apart, that rotate from row to row like keys under rotary
// embedding.
Bytes Rotated(uint64_t rows, uint64_t columns, uint64_t distance, bool bfloat, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Bytes values(2 * rows * columns);
  std::vector<float> base(columns);
  for (float& b : base) b = 2 * normal(random);
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t c = 0; c < columns; ++c) {
      const bool second = c / distance % 2 == 1;
      const uint64_t partner = second ? c - distance : c + distance;
      const float angle = static_cast<float>(row) / static_cast<float>(1 + c % distance * 3 + 1);
      const float rotated =
          base[c] * std::cos(angle) + (second ? 1.0f : -1.0f) * base[partner] * std::sin(angle);
      const float value = rotated + 0.1f * normal(random);
      StoreLE(values.data() + 2 * (row * columns + c), bfloat ? F32ToBF16(value) : F32ToF16(value));
    }
  }
  return values;
}

Bytes Encode(const Bytes& values, bool bfloat, uint64_t rows, uint64_t columns, uint64_t head_dim) {
  CodecScratch scratch;
  Bytes frame;
  const HalfSurvey survey = SurveyHalves(values, {bfloat}, true);
  REQUIRE(EncodeLms(values, survey, rows, columns, head_dim, nullptr, UINT64_MAX, scratch, frame));
  return frame;
}

Bytes CheckRoundTrip(const Bytes& values, bool bfloat, uint64_t rows, uint64_t columns,
                     uint64_t head_dim = 0) {
  const Bytes frame = Encode(values, bfloat, rows, columns, head_dim);
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    CodecScratch scratch;
    Bytes back(values.size());
    DecodeLms(frame, {bfloat}, false, back, scratch);
    REQUIRE(back == values);
    REQUIRE(Encode(values, bfloat, rows, columns, head_dim) == frame);
  });
  return frame;
}

}  // namespace

TEST_CASE("turning pairs are predicted, whichever way they lie", "[lms]") {
  for (const bool bfloat : {false, true}) {
    for (const uint64_t distance : {1, 16}) {
      const Bytes values = Rotated(400, 64, distance, bfloat, 1);
      const Bytes frame = CheckRoundTrip(values, bfloat, 400, 64, distance == 1 ? 0 : 32);
      CHECK(static_cast<uint64_t>(frame[2]) == distance);
      ContextScratch scratch;
      const auto above =
          PlanContext(values, SurveyHalves(values, {bfloat}, true), 400, 64, UINT64_MAX, scratch);
      REQUIRE(above);
      CHECK(static_cast<double>(frame.size()) < 0.97 * static_cast<double>(above->bytes));
    }
  }
}

TEST_CASE("long lms frames are coded in more lanes", "[lms]") {
  const Bytes frame = CheckRoundTrip(Rotated(2100, 64, 16, false, 4), false, 2100, 64, 32);
  CHECK(static_cast<uint32_t>(frame[0]) >> 4 == 2);
}

TEST_CASE("any grid and any bits survive prediction", "[lms]") {
  std::mt19937 random(2);
  for (const bool bfloat : {false, true}) {
    for (const uint64_t columns : {16, 17, 40, 72}) {
      for (const uint64_t rows : {2, 3, 35}) {
        Bytes values = Rotated(rows, columns * 2, columns, bfloat, 3);
        values.resize(2 * rows * columns);
        CheckRoundTrip(values, bfloat, rows, columns);
        // Every 26th value is an arbitrary bit pattern: NaN, infinity, zero.
        for (size_t i = 0; i < values.size(); i += 26)
          StoreLE(values.data() + i, static_cast<uint16_t>(random() % 3 ? random() : 0x7f80));
        CheckRoundTrip(values, bfloat, rows, columns);
        for (std::byte& b : values) b = static_cast<std::byte>(random());
        CheckRoundTrip(values, bfloat, rows, columns);
        CheckRoundTrip(Bytes(values.size()), bfloat, rows, columns);
        CheckRoundTrip(Bytes(values.size(), std::byte{0xff}), bfloat, rows, columns);
      }
    }
  }
}

TEST_CASE("a damaged lms frame is refused or decodes to something", "[lms][reject]") {
  const Bytes values = Rotated(30, 32, 1, true, 5);
  const Bytes frame = Encode(values, true, 30, 32, 0);
  CodecScratch scratch;
  Bytes out(values.size());
  test::CheckDamage(frame,
                    [&](ByteSpan damaged) { DecodeLms(damaged, {true}, false, out, scratch); });
}

}  // namespace kv::lms_test
