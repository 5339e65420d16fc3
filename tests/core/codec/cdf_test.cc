// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/cdf/cdf.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>
#include <random>

#include "lib/core/codec/context/lms.h"
#include "tests/support/damage.h"
#include "tests/support/grid.h"
#include "tests/support/targets.h"

namespace kv::cdf_test {
namespace {

using test::Grid;
using test::MakeGrid;
using test::Rotate;

Bytes Encode(const Bytes& values, bool bfloat, uint64_t rows, uint64_t columns, uint64_t head_dim) {
  Bytes frame;
  REQUIRE(EncodeCdf(values, {bfloat}, rows, columns, head_dim, {}, UINT64_MAX, frame));
  return frame;
}

void CheckDecodes(const Bytes& frame, const Bytes& values, bool bfloat) {
  Bytes back(values.size());
  DecodeCdf(frame, {bfloat}, back, {});
  REQUIRE(back == values);
}

// Returns the frame, and checks that every target encodes the same.
Bytes CheckRoundTrip(const Bytes& values, bool bfloat, uint64_t rows, uint64_t columns,
                     uint64_t head_dim) {
  const Bytes frame = Encode(values, bfloat, rows, columns, head_dim);
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    CheckDecodes(frame, values, bfloat);
    REQUIRE(Encode(values, bfloat, rows, columns, head_dim) == frame);
  });
  return frame;
}

uint64_t LmsBytes(const Bytes& values, const Grid& grid) {
  CodecScratch scratch;
  Bytes frame;
  REQUIRE(EncodeLms(values, SurveyHalves(values, {grid.bfloat}, true), grid.rows, grid.columns,
                    grid.head_dim, nullptr, UINT64_MAX, scratch, frame));
  return frame.size();
}

double Share(uint64_t part, uint64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

uint16_t U16At(const Bytes& frame, size_t at) { return LoadLE<uint16_t>(frame.data() + at); }

}  // namespace

TEST_CASE("the turns of keys are found, whichever way pairs lie", "[cdf]") {
  for (const bool neighbours : {false, true}) {
    Grid grid = MakeGrid(160, 32, 16, neighbours, 0);
    Rotate(grid, neighbours);
    const Bytes values = grid.Store();
    const Bytes frame = CheckRoundTrip(values, grid.bfloat, grid.rows, grid.columns, 16);
    CHECK(U16At(frame, 16) == (neighbours ? 1 : 8));
    CHECK(U16At(frame, 18) == 8);
    CHECK(Share(frame.size(), LmsBytes(values, grid)) < 0.97);
  }
}

TEST_CASE("rows that nearly come back are found and cost little", "[cdf]") {
  for (const bool keys : {false, true}) {
    Grid grid = MakeGrid(300, 48, 16, !keys, 8);
    if (keys) Rotate(grid, false);
    const Bytes values = grid.Store();
    const Bytes frame = CheckRoundTrip(values, grid.bfloat, grid.rows, grid.columns, 16);
    CHECK(U16At(frame, 18) == (keys ? 8 : 0));
    CHECK(static_cast<int>(frame[3]) == 1);
    CHECK(Share(frame.size(), LmsBytes(values, grid)) < 0.8);
  }
}

TEST_CASE("any grid and any bits survive being coded whole", "[cdf]") {
  std::mt19937 random(2);
  for (const bool bfloat : {false, true}) {
    for (const uint64_t columns : {1, 15, 16, 17, 40, 200}) {
      const uint64_t rows = columns == 200 ? 16 : 35;
      Bytes values = MakeGrid(rows, columns, columns, bfloat, 3).Store();
      // Every 26th value is an arbitrary bit pattern: NaN, infinity, zero.
      for (size_t i = 0; i < values.size(); i += 26)
        StoreLE(values.data() + i, static_cast<uint16_t>(random() % 3 ? random() : 0x7f80));
      CheckRoundTrip(values, bfloat, rows, columns, columns);
      for (std::byte& b : values) b = static_cast<std::byte>(random());
      CheckDecodes(Encode(values, bfloat, rows, columns, 0), values, bfloat);
      for (const int all : {0, 0xff, 0x7f}) {
        values.assign(values.size(), static_cast<std::byte>(all));
        CheckDecodes(Encode(values, bfloat, rows, columns, 0), values, bfloat);
      }
    }
  }
}

// Some rotation partners are neither among the near channels nor in another group: such taps are
// dropped.
TEST_CASE("keys of heads of any size come back", "[cdf]") {
  for (uint64_t half = 1; half <= 33; ++half) {
    Grid grid = MakeGrid(80, 4 * half, 2 * half, false, 0);
    Rotate(grid, false);
    CheckRoundTrip(grid.Store(), grid.bfloat, grid.rows, grid.columns, 2 * half);
  }
}

TEST_CASE("a frame is made only where it is smaller", "[cdf]") {
  const Bytes values = MakeGrid(16, 16, 0, true, 0).Store();
  const Bytes frame = Encode(values, true, 16, 16, 0);
  Bytes out(3);
  CHECK_FALSE(EncodeCdf(values, {true}, 16, 16, 0, {}, frame.size(), out));
  CHECK(out.size() == 3);
  CHECK(EncodeCdf(values, {true}, 16, 16, 0, {}, frame.size() + 1, out));
  CHECK(out.size() == 3 + frame.size());
  CHECK_FALSE(FitsCdf(15, 16));
  CHECK_FALSE(FitsCdf(16, 0));
  CHECK_FALSE(FitsCdf(16, ChannelModel::kMaxColumns + 1));
  CHECK_FALSE(FitsCdf(UINT64_MAX, 16));
}

TEST_CASE("a damaged cdf frame is refused or decodes to something", "[cdf][reject]") {
  Grid grid = MakeGrid(16, 18, 0, true, 7);
  const Bytes values = grid.Store();
  const Bytes frame = Encode(values, true, grid.rows, grid.columns, 0);
  CHECK(static_cast<int>(frame[3]) == 1);
  Bytes out(values.size());
  test::CheckDamage(frame, [&](ByteSpan damaged) { DecodeCdf(damaged, {true}, out, {}); });
}

TEST_CASE("values beyond the exponent that the header names do no harm", "[cdf][reject]") {
  Grid grid = MakeGrid(16, 18, 0, true, 0);
  for (float& x : grid.x) x *= 1e37f;
  const Bytes values = grid.Store();
  Bytes frame = Encode(values, true, grid.rows, grid.columns, 0), out(values.size());
  for (int largest = 1; largest < 254; ++largest) {
    frame[0] = static_cast<std::byte>(largest);
    try {
      DecodeCdf(frame, {true}, out, {});
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInvalidData);
    }
  }
}

TEST_CASE("headers of cdf frames have limits", "[cdf][reject]") {
  Grid grid = MakeGrid(160, 32, 16, false, 0);
  Rotate(grid, false);
  const Bytes values = grid.Store();
  const Bytes frame = Encode(values, false, grid.rows, grid.columns, 16);
  Bytes out(values.size());
  const auto refuse = [&](size_t at, const Bytes& bytes) {
    Bytes bad = frame;
    std::copy(bytes.begin(), bytes.end(), bad.begin() + static_cast<std::ptrdiff_t>(at));
    INFO("byte " << at << " is " << static_cast<int>(bytes[0]));
    try {
      DecodeCdf(bad, {false}, out, {});
      FAIL("not refused");
    } catch (const Error& error) {
      CHECK(error.finding() == Finding::kBadFrame);
    }
  };
  const auto bytes = [](auto value) {
    Bytes stored(sizeof(value));
    StoreLE(stored.data(), value);
    return stored;
  };
  refuse(0, bytes(uint8_t{0}));
  refuse(0, bytes(uint8_t{254}));
  refuse(1, bytes(uint8_t{33}));
  refuse(1, bytes(uint8_t{32}));  // as many near channels as columns; there must be fewer
  refuse(2, bytes(uint8_t{17}));
  refuse(3, bytes(uint8_t{2}));
  refuse(4, bytes(uint32_t{161}));
  refuse(4, bytes(uint32_t{0}));
  refuse(8, bytes(uint32_t{0}));
  refuse(12, bytes(std::nanf("")));
  refuse(12, bytes(-1.0f));
  refuse(12, bytes(5.0f));
  refuse(16, bytes(uint16_t{0}));
  refuse(16, bytes(uint16_t{33}));
  refuse(16, bytes(uint16_t{7}));
  refuse(18, bytes(uint16_t{7}));
  refuse(18, bytes(uint16_t{33}));
  refuse(2, bytes(uint32_t{1}));  // reads the low half of an angle as a far channel
}

TEST_CASE("the slots of all halves tile 2^30 and are found again", "[cdf]") {
  for (const bool bfloat : {false, true}) {
    for (const float scale : {0x1p126f, 0x1p112f, 0x1p-126f}) {
      const LogisticCode code({bfloat}, scale);
      for (const float mean : {0.0f, 0.3f, -4.0f, 4.0f}) {
        for (const float inverse : {0.0f, 1e-6f, 1.7f, 900.0f, 2e6f, 3e38f}) {
          INFO(bfloat << ' ' << scale << ' ' << mean << ' ' << inverse);
          uint32_t end = 0;
          bool tiles = true, found = true;
          for (uint32_t place = 0; place < 65536; ++place) {
            const CodeSlot slot = code.FindSlot(place, mean, inverse);
            tiles &= slot.start == end && slot.size >= 16;
            end = slot.start + slot.size;
            if (place % 61 != 0) continue;
            for (const uint32_t target : {slot.start, end - 1}) {
              CodeSlot again;
              found &= code.Find(target, mean, inverse, again) == HalfAt(place, 0) &&
                       again.start == slot.start && again.size == slot.size;
            }
          }
          REQUIRE(tiles);
          REQUIRE(found);
          REQUIRE(end == kSlotTotal);
        }
      }
    }
  }
  for (const int unit_bits : {0, 7, 8}) {
    for (uint32_t place = 0; place < 65536; place += 1u << unit_bits)
      REQUIRE(FindPlace(HalfAt(place, unit_bits), unit_bits) == place);
  }
}

TEST_CASE("slots come back in their order, and only all of them", "[cdf]") {
  std::mt19937 random(3);
  std::vector<CodeSlot> slots;
  for (int i = 0; i < 2000; ++i) {
    const uint32_t size = std::max<uint32_t>(1, random() >> (2 + random() % 30));
    slots.push_back({static_cast<uint32_t>(random() % (kSlotTotal - size + 1)), size});
  }
  slots.push_back({0, kSlotTotal});
  ByteWriter writer;
  WriteSlots(slots, writer);
  const auto read = [&](ByteSpan bytes, size_t count) {
    ByteReader bytes_reader(bytes);
    SlotReader reader(bytes_reader);
    for (size_t i = 0; i < count; ++i) {
      REQUIRE(reader.target() - slots[i].start < slots[i].size);
      reader.Take(slots[i]);
    }
    reader.CheckEnd();
  };
  read(writer.bytes(), slots.size());
  CHECK_THROWS_AS(read(writer.bytes(), slots.size() - 2), Error);
  CHECK_THROWS_AS(read(writer.bytes().first(writer.size() - 4), slots.size()), Error);
  CHECK_THROWS_AS(read(writer.bytes().first(writer.size() - 1), 0), Error);
}

TEST_CASE("rows turn there and back", "[cdf]") {
  constexpr uint64_t kColumns = 43;  // two heads of 16 columns, and a part of a third
  for (const bool neighbours : {false, true}) {
    Rotation rotation{neighbours ? 1u : 8u, {}};
    for (uint32_t pair = 0; pair < 8; ++pair) rotation.angles.push_back(0x28be60db >> pair * 3);
    Rotator rotator(rotation, kColumns);
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    std::vector<float> x(kColumns), rotated(kColumns), back(kColumns), cosines(kColumns),
        sines(kColumns);
    for (float& value : x) value = normal(random);
    for (const uint32_t steps : {0u, 1u, 100u, 12345u, 0xfffffffeu}) {
      rotator.Angles(steps, cosines.data(), sines.data());
      rotator.Rotate(steps, x.data(), rotated.data());
      rotator.Rotate(-steps, rotated.data(), back.data());
      for (uint64_t c = 0; c < kColumns; ++c) {
        const uint64_t pair = neighbours ? c % 16 / 2 : c % 8;
        const double angle =
            static_cast<double>(rotation.angles[pair] * steps) / 0x1p31 * std::numbers::pi;
        INFO("channel " << c << ", " << steps << " steps");
        REQUIRE(std::abs(static_cast<double>(cosines[c]) - std::cos(angle)) < 1e-6);
        REQUIRE(std::abs(static_cast<double>(sines[c]) - std::sin(angle)) < 1e-6);
        const bool alone = c >= kColumns / (2 * rotation.distance) * 2 * rotation.distance;
        if (!alone) REQUIRE(std::abs(back[c] - x[c]) < 1e-5f);
      }
    }
  }
}

}  // namespace kv::cdf_test
