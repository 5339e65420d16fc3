// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/raw/raw.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "formats/registry.h"
#include "lib/core/snapshot/layout.h"

namespace kv::raw::raw_test {
namespace {

Snapshot Read(const std::string& spec, const std::vector<uint16_t>& values,
              std::optional<uint64_t> batch = {}) {
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  Source source;
  source.path = "data.bin";
  source.files.push_back(
      {"data.bin", FileSource::FromBytes({data, data + values.size() * 2}, "data.bin")});
  OpenOptions options;
  options.from = "raw";
  options.raw = spec;
  options.batch = batch;
  return OpenSnapshot(std::move(source), options);
}

std::vector<uint16_t> Iota(uint64_t count) {
  std::vector<uint16_t> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<uint16_t>(i);
  return values;
}

// Returns the position of the element with these indices, from the axes as described.
uint64_t Place(const Spec& spec, std::map<char, uint64_t> index) {
  uint64_t place = 0;
  for (const Axis& axis : spec.axes) place = place * *axis.size + index[axis.letter];
  return place;
}

std::string UsageOf(const std::string& spec) {
  try {
    ParseSpec(spec);
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kUsage);
    CHECK(error.hint().find("f16:2LTHD:2,32,?,8,128") != std::string::npos);
    return error.what();
  }
  return "";
}

std::string MismatchOf(const std::string& spec, uint64_t bytes) {
  try {
    Resolve(ParseSpec(spec), bytes);
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kSizeMismatch);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("the open size follows from the size of the file", "[raw]") {
  const Snapshot snapshot = Read("f16:2LTHD:2,3,?,2,4", Iota(2 * 3 * 5 * 2 * 4));
  REQUIRE(snapshot.layers.size() == 3);
  CHECK(snapshot.layers[2].k.tokens() == 5);
  CHECK(snapshot.layers[2].k.heads == 2);
  CHECK(snapshot.layers[2].v->head_dim == 4);
  CHECK(snapshot.facts[0].second == "f16:2LTHD:2,3,5,2,4");
  CHECK(FindRegions(snapshot).size() == 6);  // the file has only values
}

TEST_CASE("any order of axes reads every element from its place", "[raw]") {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    std::string order = random() % 2 != 0 ? "T" : "TP";
    for (const char letter : {'2', 'L', 'H', 'B'}) {
      if (random() % 3 != 0) order += letter;
    }
    order += 'D';
    std::shuffle(order.begin(), order.end(), random);
    Spec spec{.name = "--raw", .dtype = DType::kF16, .axes = {}};
    uint64_t count = 1;
    for (const char letter : order) {
      const uint64_t size = letter == '2' ? 1 + random() % 2 : 1 + random() % 5;
      spec.axes.push_back({letter, size});
      count *= size;
    }
    const std::string text = Described(spec);
    INFO(text);
    REQUIRE(ParseSpec(text).axes == spec.axes);
    const auto size_of = [&](char letter) {
      for (const Axis& axis : spec.axes) {
        if (axis.letter == letter) return *axis.size;
      }
      return uint64_t{1};
    };
    const uint64_t batch = random() % size_of('B');
    const std::vector<uint16_t> values = Iota(count);
    const Snapshot snapshot = Read(text, values, batch);

    REQUIRE(snapshot.layers.size() == size_of('L'));
    const bool outer_is_page = order.find('P') < order.find('T');
    const uint64_t inner_tokens = size_of(outer_is_page ? 'T' : 'P');
    const uint64_t tokens = size_of('T') * size_of('P');
    const bool paged = order.find('P') != order.npos;
    for (const LayerKv& layer : snapshot.layers) {
      REQUIRE(layer.v.has_value() == (size_of('2') == 2));
      for (uint64_t which = 0; which < size_of('2'); ++which) {
        const KvTensor& tensor = which == 0 ? layer.k : *layer.v;
        REQUIRE(tensor.tokens() == tokens);
        const Bytes rows = Gather(tensor, 0, tokens, Order::kTokenHeadDim);
        uint64_t at = 0;
        for (uint64_t t = 0; t < tokens; ++t) {
          const uint64_t outer = paged ? t / inner_tokens : t, inner = t % inner_tokens;
          for (uint64_t h = 0; h < size_of('H'); ++h) {
            for (uint64_t d = 0; d < size_of('D'); ++d, at += 2) {
              const uint64_t place = Place(spec, {{'2', which},
                                                  {'L', layer.index},
                                                  {'B', batch},
                                                  {'H', h},
                                                  {'D', d},
                                                  {'T', paged && outer_is_page ? inner : outer},
                                                  {'P', outer_is_page ? outer : inner}});
              REQUIRE(LoadLE<uint16_t>(rows.data() + at) == values[place]);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("pages back to back are one piece, pages apart one piece each", "[raw]") {
  CHECK(Read("f16:2PTHD:2,3,4,2,4", Iota(2 * 3 * 4 * 8)).layers[0].k.pieces.size() == 1);
  const Snapshot apart = Read("f16:P2THD:3,2,4,2,4", Iota(2 * 3 * 4 * 8));
  CHECK(apart.layers[0].k.pieces.size() == 3);
  CHECK(FindRegions(apart).size() == 6);
  // Very many small pages: one piece describes them all.
  const auto values = Iota(20'000 * 2 * 2);
  const Snapshot many = Read("f16:P2TD:?,2,2,1", values);
  CHECK(many.layers[0].v->pieces.size() == 1);
  const Bytes rows = Gather(*many.layers[0].v, 0, 40'000, Order::kTokenHeadDim);
  for (uint64_t t = 0; t < 40'000; ++t) {
    REQUIRE(LoadLE<uint16_t>(rows.data() + 2 * t) == values[t / 2 * 4 + 2 + t % 2]);
  }
}

TEST_CASE("without 2 the tensor is K, with C the heads are unknown until told", "[raw]") {
  Snapshot snapshot = Read("bf16:TC:?,6", Iota(4 * 6));
  CHECK_FALSE(snapshot.layers[0].v.has_value());
  CHECK_FALSE(snapshot.heads_known());
  ModelGeometry geometry;
  geometry.uniform.kv_heads = 3;
  ApplyGeometry(geometry, snapshot);
  CHECK(snapshot.layers[0].k.head_dim == 2);
  CHECK(Read("bf16:TD:?,6", Iota(4 * 6)).layers[0].k.heads == 1);
}

TEST_CASE("block types are counted in elements and stay whole", "[raw]") {
  const uint64_t bytes = 2 * 5 * 3 * 34;
  const Spec spec = Resolve(ParseSpec("q8_0:2TC:2,?,96"), bytes);
  CHECK(Described(spec) == "q8_0:2TC:2,5,96");
  CHECK(Described(Resolve(ParseSpec("q8_0:2TC:2,5,?"), bytes)) == "q8_0:2TC:2,5,96");
  CHECK(UsageOf("q8_0:2TC:2,?,40").find("not a multiple of the q8_0 block (32)") !=
        std::string::npos);
  CHECK(UsageOf("q8_0:2DT:2,32,?").find("must come last") != std::string::npos);
}

TEST_CASE("errors name the part of the flag that is wrong", "[raw]") {
  CHECK(UsageOf("f16:THD") == "--raw: 'f16:THD' has 2 parts, expected 3");
  CHECK(UsageOf("f17:THD:1,1,1") == "--raw: DTYPE 'f17' is not an element type");
  CHECK(UsageOf("f16::") == "--raw: ORDER is empty");
  CHECK(UsageOf("f16:TXD:1,1,1") == "--raw: ORDER 'TXD': 'X' is not one of 2LBTPGHDC");
  CHECK(UsageOf("f16:TDT:1,1,1") == "--raw: ORDER 'TDT': 'T' occurs twice");
  CHECK(UsageOf("f16:LHD:1,1,1") == "--raw: ORDER 'LHD' has no tokens (T)");
  CHECK(UsageOf("f16:TCD:1,1,1") == "--raw: ORDER 'TCD': C stands for H and D together");
  CHECK(UsageOf("f16:TH:1,1") == "--raw: ORDER 'TH' has neither D (with or without H) nor C");
  CHECK(UsageOf("f16:THD:1,1") ==
        "--raw: SIZES '1,1' has 2 numbers for the 3 letters of ORDER 'THD'");
  CHECK(UsageOf("f16:THD:1,x,1") == "--raw: SIZES: 'x' for H is neither a positive number nor '?'");
  CHECK(UsageOf("f16:THD:1,0,1").find("'0' for H") != std::string::npos);
  CHECK(UsageOf("f16:THD:1,-1,1").find("'-1' for H") != std::string::npos);
  CHECK(UsageOf("f16:THD:?,?,1") == "--raw: SIZES '?,?,1': only one can be '?'");
  CHECK(UsageOf("f16:2TD:3,1,1") == "--raw: SIZES: 3 for 2 is more than 2");
  CHECK(UsageOf("f16:LTD:70000,1,1") == "--raw: SIZES: 70000 for L is more than 65536");
}

TEST_CASE("sizes that do not make the file are refused with the numbers", "[raw]") {
  CHECK(MismatchOf("f16:THD:4,2,8", 128) == "");
  CHECK(MismatchOf("f16:THD:4,2,8", 130) == "has 130 bytes, but the sizes of --raw give 128");
  CHECK(MismatchOf("f16:THD:?,2,8", 130) ==
        "has 130 bytes, not a multiple of the 32 that one T of --raw takes (2 bytes over)");
  CHECK(MismatchOf("f16:THD:?,2,8", 0) != "");
  CHECK(MismatchOf("f16:2THD:?,1,2,8", 128) != "");
  CHECK_THROWS_AS(Resolve(ParseSpec("f16:THD:18446744073709551615,4294967295,2"), 10), Error);
}

TEST_CASE("a batch must be chosen and exist", "[raw]") {
  const auto refusal = [](std::optional<uint64_t> batch) -> std::string {
    try {
      Read("f16:BTD:2,3,4", Iota(24), batch);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  CHECK(refusal({}) == "--raw has 2 batch rows");
  CHECK(refusal(2) == "--batch 2, but --raw has 2 rows");
  CHECK(refusal(1) == "");
}

}  // namespace kv::raw::raw_test
