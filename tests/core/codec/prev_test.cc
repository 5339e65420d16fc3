// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/context/prev.h"

#include <catch2/catch.hpp>
#include <random>
#include <tuple>

#include "lib/core/base/half.h"
#include "tests/support/damage.h"
#include "tests/support/targets.h"

namespace kv::prev_test {
namespace {

// Draws channels with their own offset that wander slowly, as keys do.
Bytes KeyLike(size_t rows, size_t columns, bool bfloat, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> offset(columns), state(columns);
  for (float& o : offset) o = 3 * normal(random);
  Bytes values(2 * rows * columns);
  for (size_t i = 0; i < rows * columns; ++i) {
    float& x = state[i % columns];
    x = 0.9f * x + 0.4f * normal(random);
    const float value = offset[i % columns] + x;
    StoreLE(values.data() + 2 * i, bfloat ? F32ToBF16(value) : F32ToF16(value));
  }
  return values;
}

Bytes RandomBits(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes values(2 * count);
  for (std::byte& b : values) b = static_cast<std::byte>(random());
  return values;
}

Bytes CheckRoundTrip(const Bytes& values, bool bfloat, uint64_t rows, uint64_t columns) {
  ContextScratch scratch;
  Bytes frame;
  const HalfSurvey survey = SurveyHalves(values, {bfloat}, true);
  const std::optional<ContextPlan> found =
      PlanContext(values, survey, rows, columns, UINT64_MAX, scratch);
  REQUIRE(found);
  const ContextPlan& plan = *found;
  EncodeContext(values, plan, scratch, frame);
  CHECK(plan.bytes < frame.size() + 64);
  CHECK(frame.size() < plan.bytes + frame.size() / 100 + 64);
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    Bytes back(values.size());
    DecodeContext(frame, {bfloat}, back, scratch);
    REQUIRE(back == values);
  });
  return frame;
}

}  // namespace

TEST_CASE("key-like rows come back and beat coding without context", "[context]") {
  for (const bool bfloat : {false, true}) {
    const Bytes values = KeyLike(300, 64, bfloat, 1);
    const Bytes in_rows = CheckRoundTrip(values, bfloat, 300, 64);
    const Bytes flat = CheckRoundTrip(values, bfloat, 1, 300 * 64);
    CHECK(in_rows.size() < 0.97 * static_cast<double>(flat.size()));
  }
}

TEST_CASE("every width and count of values survives", "[context]") {
  for (const bool bfloat : {false, true}) {
    for (const size_t columns : {1, 3, 15, 16, 17, 40}) {
      for (const size_t rows : {1, 2, 5, 33})
        CheckRoundTrip(KeyLike(rows, columns, bfloat, 2), bfloat, rows, columns);
    }
  }
}

TEST_CASE("long frames are coded in more lanes", "[context]") {
  for (const auto& [rows, columns, first_byte] :
       {std::tuple<size_t, size_t, uint32_t>{300, 64, 1 << 4}, {1100, 64, 2 << 4}}) {
    const Bytes frame = CheckRoundTrip(KeyLike(rows, columns, true, 6), true, rows, columns);
    CHECK((static_cast<uint32_t>(frame[0]) & 0xf0) == first_byte);
    Bytes more_lanes = frame, out(2 * rows * columns);
    more_lanes[0] |= std::byte{0x30};
    ContextScratch scratch;
    CHECK_THROWS_AS(DecodeContext(more_lanes, {true}, out, scratch), Error);
  }
}

TEST_CASE("the last raw bits are in the states, if there are so many", "[context]") {
  for (const bool bfloat : {false, true}) {
    for (size_t rows = 1; rows < 16; ++rows) {
      for (const size_t columns : {16, 18, 23}) {
        const Bytes frame =
            CheckRoundTrip(KeyLike(rows, columns, bfloat, 7), bfloat, rows, columns);
        const uint32_t raw_bits = (bfloat ? 13 : 16) - (static_cast<uint32_t>(frame[0]) & 15);
        CHECK((frame[2] == std::byte{1}) == (RawPlaneBytes(rows * columns, raw_bits) >= 30));
      }
    }
  }
}

TEST_CASE("any bits survive: noise, NaNs, zeros, constants", "[context]") {
  for (const bool bfloat : {false, true}) {
    CheckRoundTrip(RandomBits(64 * 32, 3), bfloat, 64, 32);
    CheckRoundTrip(Bytes(2 * 64 * 32), bfloat, 64, 32);
    CheckRoundTrip(Bytes(2 * 64 * 32, std::byte{0xff}), bfloat, 64, 32);
    Bytes mixed = KeyLike(64, 32, bfloat, 4);
    for (size_t i = 0; i < mixed.size(); i += 94)
      StoreLE(mixed.data() + i, static_cast<uint16_t>(i));
    CheckRoundTrip(mixed, bfloat, 64, 32);
  }
}

TEST_CASE("a damaged frame is refused or decodes to something, never past its bounds",
          "[context]") {
  const Bytes values = KeyLike(40, 32, true, 5);
  const Bytes frame = CheckRoundTrip(values, true, 40, 32);
  ContextScratch scratch;
  Bytes out(values.size());
  test::CheckDamage(frame, [&](ByteSpan damaged) { DecodeContext(damaged, {true}, out, scratch); });
}

TEST_CASE("tables list or pack their frequencies", "[context]") {
  // The cases range from the fewest to the most symbols and tables allowed, with similar and
  // different statistics.
  std::mt19937 random(8);
  for (const uint32_t bits : {6, 7, 8}) {
    for (const uint32_t tables : {1, 2, 16}) {
      ContextCounts counts(tables, bits);
      ContextGroups groups{ArenaVector<uint8_t>(size_t{1} << bits), tables};
      for (size_t i = 0; i < groups.group_of.size(); ++i)
        groups.group_of[i] = static_cast<uint8_t>(i * tables >> bits);
      for (uint32_t t = 0; t + 1 < tables || t == 0; ++t) {  // the last table may be empty
        const uint32_t kinds = 1u << random() % bits;
        for (uint32_t s = 0; s < 1u << bits; ++s)
          counts.Of(t)[s] = random() % kinds == 0 ? random() >> random() % 32 : 0;
      }
      const ContextModel model = MakeModel(groups, counts);
      const std::vector<uint16_t> order = SignedOrder(bits);
      ByteWriter packed;
      WriteModel(model, order, packed);
      ByteReader reader(packed.bytes());
      const ContextModel back = ReadModel(reader, bits, order);
      reader.ExpectEnd("the model");
      CHECK(back.tables == model.tables);
      CHECK(back.table_of == model.table_of);
      for (size_t size = 0; size < packed.size(); ++size) {
        ByteReader cut(packed.bytes().first(size));
        REQUIRE_THROWS_AS(ReadModel(cut, bits, order), Error);
      }

      ByteWriter listed;
      listed.U8(static_cast<uint8_t>(tables));
      const auto runs = LoadLE<uint16_t>(packed.data() + 1);
      listed.Append(packed.bytes().subspan(1, 2 + runs));
      for (const auto& table : model.tables) {
        for (uint32_t byte = 0; byte < 1u << (bits - 3); ++byte) {
          uint32_t mask = 0;
          for (uint32_t bit = 0; bit < 8; ++bit)
            mask |= static_cast<uint32_t>(table[8 * byte + bit] != 0) << bit;
          listed.U8(static_cast<uint8_t>(mask));
        }
        for (const uint16_t f : table) {
          if (f >= 128) listed.U8(static_cast<uint8_t>(0x80 | f >> 8));
          if (f > 0) listed.U8(static_cast<uint8_t>(f));
        }
      }
      ByteReader old(listed.bytes());
      CHECK(ReadModel(old, bits, order).tables == model.tables);
    }
  }
}

TEST_CASE("frequencies keep every symbol that occurs", "[context]") {
  std::array<uint32_t, 256> counts{};
  counts[3] = 1'000'000;
  for (uint32_t s = 10; s < 200; ++s) counts[s] = 1;
  const auto frequencies = MakeTable(counts.data(), 256).frequencies;
  uint32_t sum = 0;
  for (uint32_t s = 0; s < 256; ++s) {
    CHECK((frequencies[s] > 0) == (counts[s] > 0));
    sum += frequencies[s];
  }
  CHECK(sum == kRansTotal);
}

}  // namespace kv::prev_test
