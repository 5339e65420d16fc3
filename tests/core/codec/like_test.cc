// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <optional>
#include <random>

#include "lib/core/codec/context/lms.h"
#include "tests/support/damage.h"
#include "tests/support/grid.h"
#include "tests/support/targets.h"

namespace kv::like_test {
namespace {

using test::Grid;

Bytes Encode(const Grid& grid, const Bytes& values, const EarlierRowsPlan* plan) {
  CodecScratch scratch;
  Bytes frame;
  REQUIRE(EncodeLms(values, SurveyHalves(values, {grid.bfloat}, true), grid.rows, grid.columns,
                    grid.head_dim, plan, UINT64_MAX, scratch, frame));
  return frame;
}

std::optional<EarlierRowsPlan> PlanFor(const Grid& grid, const Bytes& values) {
  return PlanEarlierRows(values, grid.bfloat, grid.rows, grid.columns, grid.head_dim, {});
}

Bytes CheckRoundTrip(const Grid& grid, const Bytes& values, const EarlierRowsPlan& plan) {
  const Bytes frame = Encode(grid, values, &plan);
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    CodecScratch scratch;
    Bytes back(values.size());
    DecodeLms(frame, {grid.bfloat}, true, back, scratch);
    REQUIRE(back == values);
    REQUIRE(Encode(grid, values, &plan) == frame);
  });
  return frame;
}

// Draws any records of similar rows that a frame may have.
EarlierRowsPlan AnyPlan(uint64_t rows, uint64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  EarlierRowsPlan plan;
  plan.rotation.distance = static_cast<uint32_t>(1 + random() % columns);
  const uint32_t turns = plan.rotation.distance > 1 ? plan.rotation.distance : random() % columns;
  for (uint32_t i = 0; i < turns; ++i)
    plan.rotation.angles.push_back(static_cast<uint32_t>(random()));
  plan.earlier_rows.resize(rows);
  for (uint64_t row = 1; row < rows; ++row) {
    if (random() % 3 == 0) continue;
    plan.earlier_rows[row] = {static_cast<uint32_t>(1 + random() % (kSimilarityClasses - 1)),
                              static_cast<uint32_t>(1 + random() % row)};
  }
  return plan;
}

}  // namespace

TEST_CASE("rows are predicted from earlier ones that they resemble", "[like]") {
  for (const bool keys : {false, true}) {
    for (const bool neighbours : {false, true}) {
      Grid grid = test::MakeGrid(300, 48, 16, !keys, 8);
      if (keys) test::Rotate(grid, neighbours);
      const Bytes values = grid.Store();
      const std::optional<EarlierRowsPlan> plan = PlanFor(grid, values);
      REQUIRE(plan);
      CHECK(plan->rotation.angles.size() == (keys ? 8 : 0));
      CHECK(plan->earlier_rows[0].similarity == 0);
      const Bytes frame = CheckRoundTrip(grid, values, *plan);
      const Bytes lms = Encode(grid, values, nullptr);
      CHECK(static_cast<double>(frame.size()) < 0.92 * static_cast<double>(lms.size()));
    }
  }
}

TEST_CASE("nothing is planned where no row resembles another", "[like]") {
  const Grid grid = test::MakeGrid(100, 64, 16, true, 0);
  CHECK_FALSE(PlanFor(grid, grid.Store()));
  const Grid few = test::MakeGrid(15, 64, 16, true, 9);
  CHECK_FALSE(PlanFor(few, few.Store()));
}

TEST_CASE("any grid, any bits and any likenesses survive", "[like]") {
  std::mt19937 random(2);
  for (const bool bfloat : {false, true}) {
    for (const uint64_t columns : {16, 17, 40}) {
      for (const uint64_t rows : {2, 35}) {
        const Grid grid = test::MakeGrid(rows, columns, 0, bfloat, 5);
        Bytes values = grid.Store();
        const EarlierRowsPlan plan = AnyPlan(rows, columns, static_cast<uint32_t>(columns + rows));
        CheckRoundTrip(grid, values, plan);
        for (std::byte& b : values) b = static_cast<std::byte>(random());
        CheckRoundTrip(grid, values, plan);
        CheckRoundTrip(grid, Bytes(values.size(), std::byte{0xff}), plan);
      }
    }
  }
}

TEST_CASE("a damaged frame of likenesses is refused or decodes to something", "[like][reject]") {
  const Grid grid = test::MakeGrid(30, 32, 0, true, 7);
  const Bytes values = grid.Store();
  const std::optional<EarlierRowsPlan> plan = PlanFor(grid, values);
  REQUIRE(plan);
  const Bytes frame = Encode(grid, values, &*plan);
  CodecScratch scratch;
  Bytes out(values.size());
  test::CheckDamage(frame,
                    [&](ByteSpan damaged) { DecodeLms(damaged, {true}, true, out, scratch); });
}

TEST_CASE("likenesses that no row can have are refused", "[like][reject]") {
  const auto read = [](const EarlierRowsPlan& plan, uint64_t rows, uint64_t columns) {
    CodecScratch scratch;
    ByteWriter writer;
    WriteEarlierRows(plan, scratch, writer);
    ByteReader reader(writer.bytes());
    const EarlierRowsPlan back = ReadEarlierRows(reader, rows, columns, scratch);
    CHECK(reader.at_end());
    REQUIRE(back.earlier_rows.size() == plan.earlier_rows.size());
    for (size_t row = 0; row < rows; ++row) {
      CHECK(back.earlier_rows[row].similarity == plan.earlier_rows[row].similarity);
      CHECK(back.earlier_rows[row].distance == plan.earlier_rows[row].distance);
    }
  };
  const EarlierRowsPlan good = AnyPlan(20, 16, 5);
  read(good, 20, 16);
  CHECK_THROWS_AS(read(good, 19, 16), Error);
  CHECK_THROWS_AS(read(good, 21, 16), Error);
  for (const EarlierRow like :
       {EarlierRow{1, 0}, EarlierRow{0, 1}, EarlierRow{6, 1}, EarlierRow{2, 10}}) {
    EarlierRowsPlan bad = good;
    bad.earlier_rows[9] = like;
    CHECK_THROWS_AS(read(bad, 20, 16), Error);
  }
  for (const Rotation& rotation : {Rotation{0, {}}, Rotation{17, {}}, Rotation{2, {1, 2, 3}},
                                   Rotation{1, std::vector<uint32_t>(17)}}) {
    EarlierRowsPlan bad = good;
    bad.rotation = rotation;
    CHECK_THROWS_AS(read(bad, 20, 16), Error);
  }
}

}  // namespace kv::like_test
