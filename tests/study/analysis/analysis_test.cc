// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/analysis.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "lib/core/base/half.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/analysis/report.h"
#include "tests/support/mlp_weights.h"

namespace kv::analysis {
namespace {

Structure StructureOf(const std::vector<std::vector<uint16_t>>& rows, uint64_t step) {
  StructureFinder finder(rows.front().size(), 2);
  for (size_t begin = 0; begin < rows.size(); begin += step) {
    Bytes bytes;
    const size_t end = std::min(rows.size(), begin + step);
    for (size_t t = begin; t < end; ++t) {
      for (const uint16_t value : rows[t]) {
        bytes.push_back(static_cast<std::byte>(value & 255));
        bytes.push_back(static_cast<std::byte>(value >> 8));
      }
    }
    finder.Add(bytes, end - begin);
  }
  return finder.Finish();
}

}  // namespace

TEST_CASE("zero rows, repeats and dead channels are counted, whatever the slices") {
  const std::vector<std::vector<uint16_t>> rows = {{7, 1, 0, 5}, {7, 2, 0, 5}, {0, 0, 0, 0},
                                                   {7, 1, 0, 5}, {7, 1, 0, 5}, {0, 0, 0, 0},
                                                   {0, 0, 0, 0}};
  for (const uint64_t step : {1u, 2u, 7u}) {
    const Structure found = StructureOf(rows, step);
    CHECK(found.tokens == 7);
    CHECK(found.zero_rows == 3);
    CHECK(found.trailing_zero_rows == 2);
    CHECK(found.repeated_rows == 2);
    CHECK(found.constant_channels == 1);
    CHECK(found.zero_channels == 1);
  }
  const Structure same = StructureOf({{7, 1}, {7, 3}}, 2);
  CHECK(same.constant_channels == 1);
  CHECK(same.zero_channels == 0);
  CHECK(StructureOf({{7, 1}}, 1).constant_channels == 0);
}

TEST_CASE("f32 values that a smaller type holds exactly are recognised, one by one") {
  const auto bits = [](float x) {
    Bytes bytes(4);
    StoreLE(bytes.data(), x);
    return bytes;
  };
  const auto narrow = [&](float x) {
    Narrowness n;
    CountNarrow(bits(x), n);
    return std::pair(n.is_f16(), n.is_bf16());
  };
  CHECK(narrow(1.5f) == std::pair(true, true));
  CHECK(narrow(1 + 1 / 1024.0f) == std::pair(true, false));
  CHECK(narrow(1e30f) == std::pair(false, false));
  CHECK(narrow(0x1p100f) == std::pair(false, true));
  CHECK(narrow(-0.0f) == std::pair(true, true));
  CHECK(narrow(0.1f) == std::pair(false, false));
  CHECK_FALSE(Narrowness().is_f16());
}

TEST_CASE("an analysis is the same in every order of storage and with every number of threads") {
  test::CacheShape shape;
  shape.tokens = 100;
  shape.head_dim = 8;
  const auto analyse = [&](Order order, int threads) {
    shape.order = order;
    ThreadPool pool(threads);
    Snapshot snapshot = CastSnapshot(test::MakeCache(shape), DType::kF16, pool);
    return AnalysisJson(Analyse(snapshot, {.per_head = true}, pool));
  };
  const auto expected = analyse(Order::kTokenHeadDim, 1);
  CHECK(expected == analyse(Order::kTokenHeadDim, 4));
  CHECK(expected == analyse(Order::kHeadTokenDim, 1));
  CHECK(expected == analyse(Order::kHeadDimToken, 2));
  CHECK(expected["summary"]["total"]["decodes"] == true);
  CHECK(expected["layers"][0]["k"]["heads"].size() == shape.heads);
}

TEST_CASE("f32 that came from bf16 is said to be half free, and every part may be missing") {
  test::CacheShape shape;
  shape.tokens = 64;
  ThreadPool pool(2);
  Snapshot rounded =
      CastSnapshot(CastSnapshot(test::MakeCache(shape), DType::kBF16, pool), DType::kF32, pool);
  Analysis analysis = Analyse(rounded, {}, pool);
  REQUIRE(analysis.layers[1].v->narrow);
  // Values near 1 that bf16 holds fit into f16 as well, which is preferred.
  CHECK(analysis.layers[1].v->narrowness->is_bf16());
  CHECK(analysis.layers[1].v->narrow_dtype == DType::kF16);
  CHECK(analysis.layers[1].v->narrow->ratio() > 1.9);
  CHECK(analysis.layers[1].v->narrow->decodes());
  CHECK(analysis.findings.size() == 2);

  for (LayerKv& layer : rounded.layers) layer.v.reset();
  analysis = Analyse(rounded, {}, pool);
  CHECK(analysis.v.raw_bytes == 0);
  CHECK(AnalysisJson(analysis)["summary"]["v"].is_null());
  rounded.layers.clear();
  CHECK(Analyse(rounded, {}, pool).total().raw_bytes == 0);
}

TEST_CASE("a rotation is undone in both pairings, and the right one shows") {
  // Constant keys, turned as positions go: undone, next to nothing is left.
  const uint32_t heads = 2, dim = 16;
  const uint64_t tokens = 400;
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> key(heads * dim);
  for (float& x : key) x = normal(random);
  Rope rope;
  rope.base = 10000;
  Snapshot snapshot;
  Bytes stored(tokens * heads * dim * 2);
  for (uint64_t t = 0; t < tokens; ++t) {
    std::vector<float> row = key;
    ShiftPositions(rope, static_cast<double>(t), row.data(), heads, dim);
    for (size_t c = 0; c < row.size(); ++c) {
      StoreLE(&stored[(t * row.size() + c) * 2], F32ToF16(row[c]));
    }
  }
  snapshot.spools.push_back(FileSource::FromBytes(std::move(stored), "keys"));
  snapshot.layers.push_back({0,
                             {},
                             {},
                             ContiguousTensor(snapshot.spools[0]->bytes().data(), DType::kF16,
                                              tokens, heads, dim, Order::kTokenHeadDim),
                             {}});
  ThreadPool pool(1);
  const Analysis analysis =
      Analyse(snapshot, {.per_head = false, .effort = Effort::kHigh, .rope = rope}, pool);
  const TensorAnalysis& k = *analysis.layers[0].k;
  REQUIRE(k.unrotated.size() == 2);
  REQUIRE(k.own);
  CHECK(k.own->decodes());
  CHECK(k.own->coded_bytes < k.measured.coded_bytes * 11 / 10);  // in another order
  CHECK(k.unrotated[0].interleaved);
  const double wrong = Cheapest(k.unrotated[0].models).total_bits();
  const double right = Cheapest(k.unrotated[1].models).total_bits();
  CHECK(right < wrong - 2);
  CHECK(analysis.findings.size() == 1);
}

}  // namespace kv::analysis
