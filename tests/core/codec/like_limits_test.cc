// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests frames with similar rows at the limits of fields, floats and rows.
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "lib/core/base/half.h"
#include "lib/core/codec/context/lms.h"
#include "tests/support/targets.h"

namespace kv::like_limits_test {
namespace {

struct Shape {
  uint64_t rows, columns, head_dim;
  bool bfloat;
};

// Draws keys of a few tokens that repeat at other positions; rotary partners are half a head apart.
Bytes Keys(const Shape& shape, float size) {
  constexpr uint64_t kTokens = 8;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> tokens(kTokens * shape.columns);
  for (float& x : tokens) x = size * normal(random);
  const uint64_t half = shape.head_dim / 2;
  Bytes values(2 * shape.rows * shape.columns);
  for (uint64_t row = 0; row < shape.rows; ++row) {
    const float* x = tokens.data() + random() % kTokens * shape.columns;
    for (uint64_t c = 0; c < shape.columns; ++c) {
      const bool second = c / half % 2 == 1;
      const double angle = static_cast<double>(row) * std::pow(1e4, -static_cast<double>(c % half) /
                                                                        static_cast<double>(half));
      const float partner = second ? x[c - half] : -x[c + half];
      const float rotated = x[c] * static_cast<float>(std::cos(angle)) +
                            partner * static_cast<float>(std::sin(angle));
      const float value = rotated * (1 + 0.001f * normal(random));
      StoreLE(values.data() + 2 * (row * shape.columns + c),
              shape.bfloat ? F32ToBF16(value) : F32ToF16(value));
    }
  }
  return values;
}

EarlierRowsPlan PlanFor(const Shape& shape, const Bytes& values) {
  const std::optional<EarlierRowsPlan> plan =
      PlanEarlierRows(values, shape.bfloat, shape.rows, shape.columns, shape.head_dim, {});
  REQUIRE(plan);
  REQUIRE(plan->rotation.distance == shape.head_dim / 2);
  return *plan;
}

Bytes Encode(const Shape& shape, const Bytes& values, const EarlierRowsPlan& plan) {
  CodecScratch scratch;
  Bytes frame;
  REQUIRE(EncodeLms(values, SurveyHalves(values, {shape.bfloat}, true), shape.rows, shape.columns,
                    shape.head_dim, &plan, UINT64_MAX, scratch, frame));
  return frame;
}

// Returns the decoded values, or nothing if the frame was refused.
std::optional<Bytes> Decode(const Bytes& frame, bool bfloat, size_t size) {
  CodecScratch scratch;
  Bytes values(size);
  try {
    DecodeLms(frame, {bfloat}, true, values, scratch);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidData);
    return std::nullopt;
  }
  return values;
}

// Offset of the similar rows' records in a frame without escapes.
constexpr size_t kAfterHeader = 16;

}  // namespace

TEST_CASE("the pairs of heads that are wider than a pairing can say are turned all the same",
          "[like]") {
  for (const uint64_t head_dim : {510, 512, 576}) {
    const Shape shape{40, 2 * head_dim, head_dim, false};
    const Bytes values = Keys(shape, 1);
    const EarlierRowsPlan plan = PlanFor(shape, values);
    const Bytes frame = Encode(shape, values, plan);
    if (head_dim == 510) CHECK(static_cast<uint32_t>(frame[2]) == 255);
    CHECK(Decode(frame, shape.bfloat, values.size()) == values);
  }
}

TEST_CASE("values near the largest floats are predicted from likenesses", "[like]") {
  const Shape shape{60, 32, 16, true};
  const Bytes values = Keys(shape, 0x1p126f);
  const Bytes frame = Encode(shape, values, PlanFor(shape, Keys(shape, 1)));
  // The powers of these frequencies are not finite floats, so their rotation is unknown.
  CHECK(
      FindRotation(values, true, 1, shape.rows, shape.columns, shape.head_dim, {}).angles.empty());
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    REQUIRE(Decode(frame, shape.bfloat, values.size()) == values);
  });
}

TEST_CASE("predictions that overflow go the same way on every target", "[like][reject]") {
  for (const bool bfloat : {false, true}) {
    const Shape shape{60, 32, 16, bfloat};
    const Bytes values = Keys(shape, bfloat ? 0x1p120f : 0x1p12f);
    const Bytes frame = Encode(shape, values, PlanFor(shape, Keys(shape, 1)));
    for (const uint8_t largest : {1, 2, 16, 64, 125, 253}) {
      Bytes bad = frame;
      bad[3] = std::byte{largest};
      // The end of the frame reveals the damage; until then all targets must decode the same.
      std::optional<Bytes> first;
      test::ForEachTarget([&](const std::string& target) {
        INFO(target << ", " << static_cast<int>(largest));
        CodecScratch scratch;
        Bytes out(values.size());
        REQUIRE_THROWS_AS(DecodeLms(bad, {bfloat}, true, out, scratch), Error);
        if (!first) first = out;
        REQUIRE(out == *first);
      });
    }
  }
}

TEST_CASE("planes of likenesses that are too short, too long or none are refused",
          "[like][reject]") {
  const Shape shape{60, 32, 16, true};
  const Bytes values = Keys(shape, 1);
  const EarlierRowsPlan plan = PlanFor(shape, values);
  const Bytes frame = Encode(shape, values, plan);
  REQUIRE(LoadLE<uint32_t>(frame.data() + 12) == 0);
  const size_t at = kAfterHeader + 4 + 4 * plan.rotation.angles.size();
  const auto length = LoadLE<uint32_t>(frame.data() + at);
  CodecScratch scratch;
  for (const size_t rows : {size_t{0}, size_t{59}, size_t{60}, size_t{61}, size_t{4000}}) {
    const Bytes planes(3 * rows);  // zeros say that no row is similar to another
    Bytes zstd(Zstd::Bound(planes.size()));
    zstd.resize(scratch.zstd.Compress(planes, zstd));
    Bytes bad(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(at + 4));
    StoreLE(bad.data() + at, static_cast<uint32_t>(zstd.size()));
    bad.insert(bad.end(), zstd.begin(), zstd.end());
    bad.insert(bad.end(), frame.begin() + static_cast<std::ptrdiff_t>(at + 4 + length),
               frame.end());
    ByteReader reader(bad);
    reader.Take(kAfterHeader, "header");
    if (rows == shape.rows) {
      const EarlierRowsPlan none = ReadEarlierRows(reader, shape.rows, shape.columns, scratch);
      CHECK(none.rotation.angles == plan.rotation.angles);
    } else {
      CHECK_THROWS_AS(ReadEarlierRows(reader, shape.rows, shape.columns, scratch), Error);
      CHECK_FALSE(Decode(bad, shape.bfloat, values.size()));
    }
  }
  for (const uint32_t wrong : {uint32_t{0}, length - 1, length + 1, UINT32_MAX}) {
    Bytes bad = frame;
    StoreLE(bad.data() + at, wrong);
    CHECK_FALSE(Decode(bad, shape.bfloat, values.size()));
  }
}

TEST_CASE("a frame of no values has no rows of any width", "[like][lms][reject]") {
  const Shape shape{60, 32, 16, true};
  const Bytes values = Keys(shape, 1);
  const EarlierRowsPlan plan = PlanFor(shape, values);
  const Bytes frame = Encode(shape, values, plan);
  CodecScratch scratch;
  ByteReader reader(frame);
  reader.Take(kAfterHeader, "header");
  ReadEarlierRows(reader, shape.rows, shape.columns, scratch);
  const uint64_t model_at = reader.offset();
  std::vector<uint16_t> order(337);
  std::iota(order.begin(), order.end(), uint16_t{0});
  ReadModel(reader, static_cast<uint32_t>(frame[0]) & 15, order);
  const auto at = [&](uint64_t offset) {
    return frame.begin() + static_cast<std::ptrdiff_t>(offset);
  };

  // Writes the complete frame.
  ByteWriter writer;
  writer.Append(ByteSpan(frame).first(kAfterHeader));
  WriteEarlierRows({}, scratch, writer);
  Bytes none(writer.bytes().begin(), writer.bytes().end());
  none.insert(none.end(), at(model_at), at(reader.offset()));
  for (uint32_t lane = 0; lane < 16; ++lane) {
    none.resize(none.size() + 4);
    StoreLE(none.data() + none.size() - 4, uint32_t{1} << 15);
  }
  for (const auto& [rows, columns] :
       {std::pair{0u, UINT32_MAX}, {0u, 32u}, {1u, 0u}, {UINT32_MAX, 0u}}) {
    StoreLE(none.data() + 4, rows);
    StoreLE(none.data() + 8, columns);
    CHECK_FALSE(Decode(none, shape.bfloat, 0));
  }
}

}  // namespace kv::like_limits_test
