// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/rans.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "lib/core/codec/context/model.h"
#include "tests/support/targets.h"

namespace kv::rans_test {
namespace {

struct Case {
  RansGrid grid;
  ContextModel model;
  std::vector<uint8_t> symbols, tables;
};

constexpr uint32_t kLaneCounts[] = {16, 32, 64};

// Draws symbols that depend on the one above, and tables of their true counts.
Case MakeCase(RansGrid grid, uint32_t table_count, uint32_t seed) {
  const size_t rows = grid.rows, columns = grid.columns;
  std::mt19937 random(seed);
  Case c{grid, ContextModel(), std::vector<uint8_t>(rows * columns),
         std::vector<uint8_t>(rows * columns)};
  ContextGroups groups{ArenaVector<uint8_t>(256), table_count};
  for (uint32_t s = 0; s < 256; ++s)
    groups.group_of[s] = static_cast<uint8_t>(s * table_count / 256);
  ContextCounts counts(table_count, 8);
  for (size_t i = 0; i < c.symbols.size(); ++i) {
    const uint8_t above = i < columns ? 0 : c.symbols[i - columns];
    const bool rare = random() % 64 == 0;
    c.symbols[i] = static_cast<uint8_t>(rare ? random() : above + random() % 5);
    c.tables[i] = groups.group_of[above];
    ++counts.Of(c.tables[i])[c.symbols[i]];
  }
  c.model = MakeModel(groups, counts);
  return c;
}

// Returns final states of lanes, which may be any number from 2^15 on.
RansStates Ends() {
  RansStates ends;
  for (uint32_t lane = 0; lane < ends.size(); ++lane) ends[lane] = kRansLow + 997 * lane * lane;
  return ends;
}

std::vector<uint16_t> Encode(const Case& c, const RansContexts& contexts, RansStates& states) {
  states = Ends();
  std::vector<RansEncoderSymbol> symbols;
  MakeEncoderSymbols(c.model, symbols);
  std::vector<uint16_t> words(c.symbols.size() + kRansRoom);
  uint16_t* end = words.data() + words.size();
  const uint16_t* begin =
      RansEncode(c.symbols.data(), c.grid, contexts, symbols.data(), end, states);
  return {begin, static_cast<const uint16_t*>(end)};
}

void CheckDecode(const Case& c, const RansContexts& contexts) {
  RansStates start;
  const std::vector<uint16_t> words = Encode(c, contexts, start);
  std::vector<RansSlot> slots;
  MakeSlots(c.model, slots);
  // The words are at an odd address, like the words in every other frame.
  Bytes stream(1 + 2 * words.size());
  for (size_t i = 0; i < words.size(); ++i) StoreLE(stream.data() + 1 + 2 * i, words[i]);
  const auto check = [&](auto decode) {
    RansStates states = start;
    std::vector<uint8_t> out(c.symbols.size(), 0xee);
    REQUIRE(decode(out.data(), c.grid, contexts, slots.data(), stream.data() + 1, words.size(),
                   states) == words.size());
    REQUIRE(out == c.symbols);
    REQUIRE(states == Ends());
    states = start;
    if (!words.empty()) {
      REQUIRE(decode(out.data(), c.grid, contexts, slots.data(), stream.data() + 1,
                     words.size() - 1, states) == SIZE_MAX);
    }
  };
  check(ref::RansDecode);
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    check(RansDecode);
    RansStates again;
    REQUIRE(Encode(c, contexts, again) == words);
    REQUIRE(again == start);
  });
}

}  // namespace

TEST_CASE("lanes are as many as the states are worth and rows are made of", "[rans]") {
  const auto lanes = [](size_t rows, size_t columns) {
    return RansLanesFor({rows, columns}, 1000, 3000);
  };
  CHECK(lanes(1, 999) == 16);
  CHECK(lanes(1, 1000) == 32);
  CHECK(lanes(1, 2999) == 32);
  CHECK(lanes(1, 3000) == 64);
  CHECK(lanes(4096, 1024) == 64);
  CHECK(lanes(4096, 288) == 32);
  CHECK(lanes(4096, 80) == 16);
}

TEST_CASE("division by every frequency is exact over the whole range of states", "[rans]") {
  std::mt19937 random(7);
  for (uint32_t f = 1; f <= kRansTotal; ++f) {
    const RansEncoderSymbol symbol = MakeRansEncoderSymbol(kRansTotal - f, f);
    const auto check = [&](uint32_t x) {
      const auto q = static_cast<uint32_t>((uint64_t{x} * symbol.reciprocal) >> symbol.shift());
      const uint64_t expected = (uint64_t{x / f} << kRansTotalBits) + x % f + (kRansTotal - f);
      REQUIRE(x + uint64_t{symbol.bias()} + uint64_t{q} * symbol.complement() == expected);
    };
    const uint32_t limit = f << kRansLimitShift;
    check(limit - 1);
    check(kRansLow > limit ? 0 : kRansLow);
    for (int i = 0; i < 200; ++i) {
      const uint32_t multiple = random() % limit / f * f;
      check(multiple);
      if (multiple > 0) check(multiple - 1);
    }
  }
}

TEST_CASE("grids of every width decode alike on every target", "[rans]") {
  for (const uint32_t lanes : kLaneCounts) {
    for (const uint32_t tables : {1u, 3u, 16u}) {
      for (size_t columns = lanes; columns <= lanes + 51; ++columns) {
        const Case c = MakeCase({9, columns, lanes}, tables, 3);
        CheckDecode(c, {.table_of = c.model.table_of.data()});
      }
    }
  }
}

TEST_CASE("tables given per symbol need no minimum width", "[rans]") {
  for (const uint32_t lanes : kLaneCounts) {
    for (const size_t columns : {1, 2, 7, 15, 16, 17, 31, 32, 63, 64, 65, 100, 200}) {
      const Case c = MakeCase({11, columns, lanes}, 16, 5);
      CheckDecode(c, {.table_of = c.model.table_of.data(), .tables = c.tables.data()});
    }
  }
}

TEST_CASE("one long row is coded with one table", "[rans]") {
  for (const uint32_t lanes : kLaneCounts) {
    for (const size_t count : {1, 15, 16, 17, 63, 64, 65, 1000}) {
      const Case c = MakeCase({1, count, lanes}, 1, 9);
      CheckDecode(c, {.table_of = c.model.table_of.data()});
    }
  }
}

}  // namespace kv::rans_test
