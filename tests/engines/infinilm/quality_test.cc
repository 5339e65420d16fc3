// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/infinilm/quality.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "lib/engines/infinilm/compressor.h"
#include "tests/support/mlp_weights.h"

namespace kv::quality_test {
namespace {

using test::MakeCache;
using test::MakeWeights;

struct Measured {
  StepPlan plan;
  StepQuality quality;
};

Measured Measure(const Snapshot& cache, const StepSettings& settings, const QualityOptions& options,
                 int threads = 1) {
  const CompressorWeights weights = MakeWeights({});
  ThreadPool pool(threads);
  const StepPlan plan = PlanStep(cache, weights, settings);
  const Snapshot small = CompressCache(cache, weights, plan, WeightsCast::kNearest, pool);
  return {plan, MeasureStep(cache, small, plan, options, pool)};
}

// Rotates one head at `row`, whose position grew by `delta`, from the definition.
void RotateByHand(std::span<const double> frequencies, bool halves, double delta, float* row) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    float& a = row[halves ? i : 2 * i];
    float& b = row[halves ? i + frequencies.size() : 2 * i + 1];
    const double c = std::cos(delta * frequencies[i]), s = std::sin(delta * frequencies[i]);
    const double x = static_cast<double>(a), y = static_cast<double>(b);
    a = static_cast<float>(x * c - y * s);
    b = static_cast<float>(y * c + x * s);
  }
}

// Makes a model whose second layer has another base and a scaling, and the frequencies of both.
struct TwoRopes {
  ModelRope model;
  std::vector<std::vector<double>> frequencies;
};

TwoRopes MakeTwoRopes(RopePairs pairs) {
  TwoRopes made;
  Rope first, second;
  first.theta = 100;
  second.theta = 1000;
  second.scaling = ParseScaling("linear:4");
  first.pairs = second.pairs = pairs;
  made.model.layers = {first, second};
  for (const double base : {100.0, 1000.0}) {
    const double factor = base == 100 ? 1 : 4;
    made.frequencies.push_back({1 / factor, 1 / std::sqrt(base) / factor});  // heads of 4 values
  }
  return made;
}

// Copies the keys of one layer and rotates every head directly.
Snapshot WithRotatedKeys(Snapshot snapshot, const TwoRopes& ropes, bool halves, double delta) {
  for (LayerKv& layer : snapshot.layers) {
    std::vector<float> keys = GatherFloats(layer.k, 0, layer.k.tokens(), Order::kTokenHeadDim);
    for (size_t at = 0; at < keys.size(); at += layer.k.head_dim)
      RotateByHand(ropes.frequencies[layer.index], halves, delta, &keys[at]);
    Bytes bytes(keys.size() * sizeof(float));
    std::memcpy(bytes.data(), keys.data(), bytes.size());
    snapshot.spools.push_back(FileSource::FromBytes(std::move(bytes), "turned"));
    layer.k =
        ContiguousTensor(snapshot.spools.back()->bytes().data(), DType::kF32, layer.k.tokens(),
                         layer.k.heads, layer.k.head_dim, Order::kTokenHeadDim);
  }
  return snapshot;
}

const MethodQuality& Find(const StepQuality& quality, std::string_view name) {
  for (const MethodQuality& method : quality.methods) {
    if (method.name == name) return method;
  }
  throw std::runtime_error("no method " + std::string(name));
}

}  // namespace

TEST_CASE("a step that leaves everything raw costs nothing", "[mlp]") {
  const Measured m = Measure(MakeCache({.tokens = 4}), {}, {});  // too few groups
  REQUIRE(m.plan.new_length == 4);
  for (const char* name : {"mlp", "mlp+log", "mean-pool", "mean-pool+log", "drop", "knorm"}) {
    const MethodQuality& method = Find(m.quality, name);
    INFO(name);
    CHECK(method.all.output_error.max == 0);
    CHECK(method.all.mass.min == 1);
    CHECK(method.all.kl.max == 0);
    CHECK(method.bytes == m.quality.bytes_full);
  }
  CHECK_FALSE(m.quality.norm_ratios[0].k);  // nothing was compressed
  CHECK(Find(m.quality, "int8").all.output_error.max > 0);
}

TEST_CASE("methods are compared at the same bytes", "[mlp]") {
  const Snapshot cache = MakeCache({.heads = 3, .tokens = 60});
  const Measured m = Measure(cache, {.image_len = 20}, {});
  CHECK(m.quality.queries == "keys-as-queries");
  CHECK(m.quality.query_rows == 60);
  CHECK(m.quality.query_heads == 3);
  CHECK(m.quality.bytes_full == cache.kv_bytes());
  const MethodQuality& step = Find(m.quality, "mlp");
  CHECK(step.tokens == m.plan.new_length);
  CHECK(step.bytes == m.plan.bytes_after);
  for (const MethodQuality& method : m.quality.methods) {
    INFO(method.name);
    CHECK(method.bytes <= step.bytes);
    CHECK(method.tokens >= step.tokens);
    CHECK(method.layers.size() == 2);
    CHECK(method.layers[0].heads.size() == 3);
    CHECK(method.all.rows == 2 * 60);
    CHECK(std::isfinite(method.all.output_error.mean));
  }
  // 4 channels of f32 are 16 bytes; as int8 with a scale 6, as int4 with a scale 4.
  CHECK(Find(m.quality, "int8").tokens == m.plan.new_length * 16 / 6);
  CHECK(Find(m.quality, "int4").tokens == 60);
  CHECK(m.quality.norm_ratios[1].k.value_or(0) > 0);
}

TEST_CASE("pooling tokens that are all alike is exact with the log, not without", "[mlp]") {
  Snapshot cache = MakeCache({.layers = 1, .tokens = 13});
  const StepPlan plan = PlanStep(cache, MakeWeights({}), {});
  for (KvTensor* tensor : {&cache.layers[0].k, &*cache.layers[0].v}) {
    Bytes rows = Gather(*tensor, 0, 13, Order::kTokenHeadDim);
    for (const TokenRange& range : plan.Sources()) {
      for (uint64_t t = range.begin + 1; t < range.end; ++t) {
        std::copy_n(&rows[range.begin * tensor->row_bytes()], tensor->row_bytes(),
                    &rows[t * tensor->row_bytes()]);
      }
    }
    cache.spools.push_back(FileSource::FromBytes(rows, "alike"));
    *tensor = ContiguousTensor(cache.spools.back()->bytes().data(), DType::kF32, 13, 3, 4,
                               Order::kTokenHeadDim);
  }
  const Measured m = Measure(cache, {}, {});
  CHECK(Find(m.quality, "mean-pool+log").all.output_error.max < 1e-5);
  CHECK(Find(m.quality, "mean-pool").all.output_error.mean > 1e-3);
}

TEST_CASE("the position convention matters to the step alone, and only where RoPE is known",
          "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 40});
  QualityOptions options;
  const StepQuality unknown = Measure(cache, {}, options).quality;
  CHECK_FALSE(unknown.positions_moved);
  options.rope = Rope{};
  const StepQuality moved = Measure(cache, {}, options).quality;
  CHECK(moved.positions_moved);
  options.positions = PositionRule::kOriginal;
  const StepQuality original = Measure(cache, {}, options).quality;
  CHECK_FALSE(original.positions_moved);
  CHECK(Find(moved, "mlp").moved);
  CHECK(Find(moved, "mlp").all.output_error.mean != Find(original, "mlp").all.output_error.mean);
  CHECK(Find(moved, "drop").all.output_error.mean == Find(original, "drop").all.output_error.mean);
}

TEST_CASE("queries are asked where each layer's own RoPE puts them", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 40});
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    const bool halves = pairs == RopePairs::kHalves;
    const TwoRopes ropes = MakeTwoRopes(pairs);
    QualityOptions options;
    options.rope = ropes.model;
    options.key_queries = 8;
    options.positions = PositionRule::kOriginal;
    const StepQuality stand_ins = Measure(cache, {}, options).quality;
    // The same keys, rotated directly to the first position after the prompt.
    options.queries.emplace();
    options.queries->query_heads = 3;
    options.queries->positions.assign(8, 40);
    options.queries->read = [&](uint32_t layer, uint32_t head, std::vector<float>& out) {
      out = GatherFloats(cache.layers[layer].k, 32, 8, Order::kHeadTokenDim);
      out.erase(out.begin(), out.begin() + head * 32);
      out.resize(32);
      for (size_t i = 0; i < 8; ++i) {
        RotateByHand(ropes.frequencies[layer], halves, static_cast<double>(8 - i), &out[i * 4]);
      }
      return true;
    };
    const StepQuality by_hand = Measure(cache, {}, options).quality;
    // Moving the query to the new position gives the same scores as rotating the keys back.
    options.positions = PositionRule::kNewLength;
    const Measured moved = Measure(cache, {}, options);
    const double back = 40 - static_cast<double>(moved.plan.new_length);
    REQUIRE(back > 0);
    ThreadPool pool(1);
    const Snapshot small =
        CompressCache(cache, MakeWeights({}), moved.plan, WeightsCast::kNearest, pool);
    options.positions = PositionRule::kOriginal;
    const StepQuality turned_keys =
        MeasureStep(cache, WithRotatedKeys(small, ropes, halves, back), moved.plan, options, pool);
    const auto error = [](const StepQuality& quality, const char* method, size_t layer) {
      return Find(quality, method).layers[layer].all.output_error.mean;
    };
    for (const size_t layer : {size_t{0}, size_t{1}}) {
      CHECK(error(stand_ins, "drop", layer) == Approx(error(by_hand, "drop", layer)).epsilon(1e-5));
      CHECK(error(moved.quality, "mlp", layer) ==
            Approx(error(turned_keys, "mlp", layer)).epsilon(1e-5));
      CHECK(error(moved.quality, "mlp", layer) !=
            Approx(error(by_hand, "mlp", layer)).epsilon(1e-3));
    }
    // Using one base for all layers is another rotation.
    options.queries.reset();
    options.rope = ropes.model.layers[0];
    const StepQuality plain = Measure(cache, {}, options).quality;
    CHECK(error(plain, "drop", 0) == error(stand_ins, "drop", 0));
    CHECK(error(plain, "drop", 1) != Approx(error(stand_ins, "drop", 1)).epsilon(1e-3));
  }
}

TEST_CASE("a rotation that cannot be undone is refused, not guessed", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 40});
  QualityOptions options;
  Rope rope;
  rope.rotary_dim = 8;  // the head has only 4 dims
  options.rope = rope;
  CHECK_THROWS_AS(Measure(cache, {}, options), Error);
  rope.rotary_dim = 0;
  rope.scaling = ParseScaling("dynamic:2,32");  // the run is longer than 32 tokens
  options.rope = rope;
  try {
    Measure(cache, {}, options);
    FAIL("dynamic frequencies were taken for one set");
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kUnsupportedKind);
  }
  rope.scaling = ParseScaling("dynamic:2,64");
  options.rope = rope;
  CHECK(Measure(cache, {}, options).quality.positions_moved);
}

TEST_CASE("recorded queries see the tokens of their time, later ones stay raw", "[mlp]") {
  const Snapshot cache = MakeCache({.layers = 2, .heads = 3, .tokens = 30});
  QualityOptions options;
  options.queries.emplace();
  options.queries->query_heads = 6;
  options.queries->positions = {24, 25, 29};
  options.queries->read = [](uint32_t layer, uint32_t head, std::vector<float>& out) {
    out.assign(3 * 4, 0.25f * static_cast<float>(head + 1));
    return layer == 1;  // for layer 0, no queries were recorded
  };
  const Measured m = Measure(cache, {.seq_len = 24}, options);
  CHECK(m.quality.queries == "recorded");
  CHECK(m.quality.query_heads == 6);
  const MethodQuality& step = Find(m.quality, "mlp");
  REQUIRE(step.layers.size() == 1);
  CHECK(step.layers[0].layer == 1);
  CHECK(step.layers[0].heads.size() == 6);
  // Query 29 has six raw tokens before it, query 24 one: more of query 29's attention stays raw.
  CHECK(step.layers[0].all.mass.max > step.layers[0].all.mass.min);
  options.queries->query_heads = 4;
  CHECK_THROWS_AS(Measure(cache, {.seq_len = 24}, options), Error);
}

TEST_CASE("measurements have the same bits for every number of threads", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 50});
  const StepQuality one = Measure(cache, {}, {}, 1).quality;
  const StepQuality four = Measure(cache, {}, {}, 4).quality;
  for (size_t i = 0; i < one.methods.size(); ++i) {
    CHECK(one.methods[i].all.output_error.mean == four.methods[i].all.output_error.mean);
    CHECK(one.methods[i].all.kl.p95 == four.methods[i].all.kl.p95);
  }
}

TEST_CASE("baselines keep what they say", "[mlp]") {
  const std::vector<float> k = {3, 0, 1, 0, 2, 0, 0, 1}, v = {1, 1, 2, 2, 3, 3, 4, 4};
  const FloatMatrix km = MakeMatrix(k, 4, 2), vm = MakeMatrix(v, 4, 2);
  const std::vector<TokenRange> sources = {{0, 3}, {3, 4}};
  CHECK(MeanPool(km, vm, sources).k == std::vector<float>{2, 0, 0, 1});
  CHECK(MeanPool(km, vm, sources).v == std::vector<float>{2, 2, 4, 4});
  CHECK(KeepLast(km, vm, sources).k == std::vector<float>{2, 0, 0, 1});
  // Norms 3, 1, 2, 1: the smallest two are taken, in order; the earlier of a tie.
  CHECK(KeepSmallestKeys(km, vm, 2).v == std::vector<float>{2, 2, 4, 4});
  CHECK(KeepSmallestKeys(km, vm, 1).v == std::vector<float>{2, 2});
  CHECK(KeepSmallestKeys(km, vm, 9).sources.size() == 4);
  std::vector<float> rows = {127, -64, 1, 0.4f, 0, 0, 0, 0};
  QuantiseRows(rows, 4, 8);
  CHECK(rows == std::vector<float>{127, -64, 1, 0, 0, 0, 0, 0});
  CHECK(QuantisedRowBytes(128, 8) == 130);
  CHECK(QuantisedRowBytes(128, 4) == 66);
  CHECK(QuantisedRowBytes(3, 4) == 4);
}

}  // namespace kv::quality_test
