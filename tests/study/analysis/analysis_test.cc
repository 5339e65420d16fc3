// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/analysis.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "lib/core/base/half.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/mlp_weights.h"

namespace kv::analysis::analysis_test {
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
    return ToJson(AnalysisFields().Object(Analyse(snapshot, {.per_head = true}, pool)));
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
  // Values near 1 that are exact in bf16 also fit f16, which is preferred.
  CHECK(analysis.layers[1].v->narrowness->is_bf16());
  CHECK(analysis.layers[1].v->narrow_dtype == DType::kF16);
  CHECK(analysis.layers[1].v->narrow->ratio() > 1.9);
  CHECK(analysis.layers[1].v->narrow->decodes());
  CHECK(analysis.findings.size() == 2);

  for (LayerKv& layer : rounded.layers) layer.v.reset();
  analysis = Analyse(rounded, {}, pool);
  CHECK(analysis.v.raw_bytes == 0);
  CHECK(ToJson(AnalysisFields().Object(analysis))["summary"]["v"].is_null());
  rounded.layers.clear();
  CHECK(Analyse(rounded, {}, pool).total().raw_bytes == 0);
}

namespace {

// Makes keys that are one vector, rotated to their positions by `frequencies` and rounded to f16.
LayerKv ConstantKeys(uint32_t layer, std::span<const double> frequencies, uint32_t heads,
                     uint64_t tokens, Snapshot& snapshot) {
  const size_t half = frequencies.size(), dim = 2 * half;
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> key(heads * dim);
  for (float& x : key) x = normal(random);
  Bytes stored(tokens * key.size() * 2);
  for (uint64_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < key.size(); ++c) {
      const size_t i = c % dim % half, head = c / dim * dim;
      const double angle = static_cast<double>(t) * frequencies[i];
      const double x = static_cast<double>(key[head + i]),
                   y = static_cast<double>(key[head + half + i]);
      const double rotated = c % dim < half ? x * std::cos(angle) - y * std::sin(angle)
                                            : y * std::cos(angle) + x * std::sin(angle);
      StoreLE(&stored[(t * key.size() + c) * 2], F32ToF16(static_cast<float>(rotated)));
    }
  }
  snapshot.spools.push_back(FileSource::FromBytes(std::move(stored), "keys"));
  return {layer,
          {},
          {},
          ContiguousTensor(snapshot.spools.back()->bytes().data(), DType::kF16, tokens, heads,
                           static_cast<uint32_t>(dim), Order::kTokenHeadDim),
          {}};
}

// Returns the bits per value of layer `layer` after undoing the rotation in halves.
double LeftBits(const Analysis& analysis, size_t layer) {
  return Cheapest(analysis.layers[layer].k->unrotated.at(1).models).total_bits();
}

}  // namespace

TEST_CASE("a rotation is undone in both pairings, and the right one shows") {
  // Constant keys that only rotate with their positions: after undoing that, almost nothing is
  // left.
  std::vector<double> frequencies;
  for (int i = 0; i < 8; ++i) frequencies.push_back(std::pow(10000.0, -i / 8.0));
  Snapshot snapshot;
  snapshot.layers.push_back(ConstantKeys(0, frequencies, 2, 400, snapshot));
  ThreadPool pool(1);
  const Analysis analysis =
      Analyse(snapshot, {.per_head = false, .effort = Effort::kHigh, .rope = Rope{}}, pool);
  const TensorAnalysis& k = *analysis.layers[0].k;
  REQUIRE(k.unrotated.size() == 2);
  REQUIRE(k.own);
  CHECK(k.own->decodes());
  CHECK(k.own->coded_bytes < k.measured.coded_bytes * 11 / 10);  // in another order
  CHECK(k.unrotated[0].interleaved);
  const double wrong = Cheapest(k.unrotated[0].models).total_bits();
  CHECK(LeftBits(analysis, 0) < wrong - 2);
  CHECK(analysis.findings.size() == 1);
}

TEST_CASE("layers are turned back by their own base and scaling") {
  const uint64_t tokens = 400;
  Rope plain, scaled, grown;
  scaled.theta = 1e6;
  scaled.scaling = ParseScaling("linear:8");
  // The run is four times as long as the original 100 tokens.
  grown.scaling = ParseScaling("dynamic:2,100");
  std::vector<double> of_plain, of_scaled, of_grown;
  const double base = 1e4 * std::pow(2.0 * static_cast<double>(tokens) / 100 - 1, 16.0 / 14);
  for (int i = 0; i < 8; ++i) {
    of_plain.push_back(std::pow(1e4, -i / 8.0));
    of_scaled.push_back(std::pow(1e6, -i / 8.0) / 8);
    of_grown.push_back(std::pow(base, -i / 8.0));
  }
  Snapshot snapshot;
  snapshot.layers.push_back(ConstantKeys(0, of_plain, 2, tokens, snapshot));
  snapshot.layers.push_back(ConstantKeys(1, of_scaled, 2, tokens, snapshot));
  snapshot.layers.push_back(ConstantKeys(2, of_grown, 2, tokens, snapshot));
  ModelRope model;
  model.layers = {plain, scaled, grown};
  ThreadPool pool(1);
  TensorOptions options;
  options.effort = Effort::kCompat;
  options.rope = model;
  const Analysis right = Analyse(snapshot, options, pool);
  options.rope = plain;
  const Analysis one_base = Analyse(snapshot, options, pool);
  for (const size_t layer : {size_t{0}, size_t{1}, size_t{2}}) {
    INFO(layer);
    CHECK(LeftBits(right, layer) < 4);
    if (layer > 0) CHECK(LeftBits(one_base, layer) > LeftBits(right, layer) + 2);
  }
  CHECK(LeftBits(one_base, 0) == LeftBits(right, 0));

  // If a file stores only the last layer, its rows have the model's number of that layer.
  snapshot.layers.erase(snapshot.layers.begin(), snapshot.layers.begin() + 2);
  snapshot.layers[0].index = 0;
  options.rope = model;
  CHECK(LeftBits(Analyse(snapshot, options, pool), 0) > LeftBits(right, 2) + 2);
  snapshot.layers[0].label = "blk.2";
  CHECK(LeftBits(Analyse(snapshot, options, pool), 0) == LeftBits(right, 2));

  Rope too_wide;
  too_wide.rotary_dim = 32;
  options.rope = too_wide;
  CHECK_THROWS_AS(Analyse(snapshot, options, pool), Error);
}

TEST_CASE("keys at positions that no run has are not turned") {
  std::vector<double> frequencies(8, 0.5);
  Snapshot snapshot;
  snapshot.layers.push_back(ConstantKeys(0, frequencies, 1, 10, snapshot));
  CellGroup cells;
  for (int64_t i = 0; i < 10; ++i) cells.cells.push_back({.position = INT64_MIN, .sequences = {}});
  snapshot.cell_groups.push_back(std::move(cells));
  ThreadPool pool(1);
  TensorOptions options;
  options.rope = Rope{};
  CHECK(Analyse(snapshot, options, pool).layers[0].k->unrotated.empty());
  snapshot.cell_groups.clear();
  CHECK(Analyse(snapshot, options, pool).layers[0].k->unrotated.size() == 2);
}

}  // namespace kv::analysis::analysis_test
