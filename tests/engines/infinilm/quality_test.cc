// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/infinilm/quality.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "lib/engines/infinilm/baselines.h"
#include "lib/engines/infinilm/compressor.h"
#include "tests/support/mlp_weights.h"

namespace kv {
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

const MethodQuality& Find(const StepQuality& quality, const std::string& name) {
  for (const MethodQuality& method : quality.methods) {
    if (method.name == name) return method;
  }
  throw std::runtime_error("no method " + name);
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
  CHECK(m.quality.norm_ratios[0].k == 0);
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
  CHECK(m.quality.norm_ratios[1].k > 0);
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

TEST_CASE("moving the queries along with the whole cache changes nothing", "[mlp]") {
  // Rotations by a and by b compose, and only differences of positions reach a score.
  const Rope rope{10000, 4, false};
  std::vector<float> a = {1, 2, 3, 4, -1, 0.5f, 2, -3}, b = a;
  ShiftPositions(rope, 5, a.data(), 2, 4);
  ShiftPositions(rope, -2, a.data(), 2, 4);
  ShiftPositions(rope, 3, b.data(), 2, 4);
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).margin(1e-5));
  // Position 1 of the first pair is one radian; halves and pairs differ in which values are pairs.
  std::vector<float> halves = {1, 0, 0, 0}, pairs = halves;
  ShiftPositions({10000, 4, false}, 1, halves.data(), 1, 4);
  ShiftPositions({10000, 4, true}, 1, pairs.data(), 1, 4);
  CHECK(halves[0] == Approx(std::cos(1.0)));
  CHECK(halves[2] == Approx(std::sin(1.0)));
  CHECK(pairs[1] == Approx(std::sin(1.0)));
  // Dims beyond the rotated ones stay.
  std::vector<float> part = {1, 1, 7, 8};
  ShiftPositions({10000, 2, false}, 3, part.data(), 1, 4);
  CHECK(part[2] == 7);
  CHECK(part[3] == 8);
}

TEST_CASE("the position convention matters to the step alone, and only where RoPE is known",
          "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 40});
  QualityOptions options;
  const StepQuality unknown = Measure(cache, {}, options).quality;
  CHECK_FALSE(unknown.positions_moved);
  options.rope = {10000, 0, false};
  const StepQuality moved = Measure(cache, {}, options).quality;
  CHECK(moved.positions_moved);
  options.positions = PositionRule::kOriginal;
  const StepQuality original = Measure(cache, {}, options).quality;
  CHECK_FALSE(original.positions_moved);
  CHECK(Find(moved, "mlp").moved);
  CHECK(Find(moved, "mlp").all.output_error.mean != Find(original, "mlp").all.output_error.mean);
  CHECK(Find(moved, "drop").all.output_error.mean == Find(original, "drop").all.output_error.mean);
}

TEST_CASE("recorded queries see the tokens of their time, later ones stay raw", "[mlp]") {
  const Snapshot cache = MakeCache({.layers = 2, .heads = 3, .tokens = 30});
  QualityOptions options;
  options.queries.emplace();
  options.queries->query_heads = 6;
  options.queries->positions = {24, 25, 29};
  options.queries->read = [](uint32_t layer, uint32_t head, std::vector<float>& out) {
    out.assign(3 * 4, 0.25f * static_cast<float>(head + 1));
    return layer == 1;  // layer 0 was not recorded
  };
  const Measured m = Measure(cache, {.seq_len = 24}, options);
  CHECK(m.quality.queries == "recorded");
  CHECK(m.quality.query_heads == 6);
  const MethodQuality& step = Find(m.quality, "mlp");
  REQUIRE(step.layers.size() == 1);
  CHECK(step.layers[0].layer == 1);
  CHECK(step.layers[0].heads.size() == 6);
  // Query 29 has six raw tokens before it, query 24 one: more of its attention stays raw.
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
  const FloatMatrix km = MatrixOf(k, 4, 2), vm = MatrixOf(v, 4, 2);
  const std::vector<TokenRange> sources = {{0, 3}, {3, 4}};
  CHECK(MeanPool(km, vm, sources).k == std::vector<float>{2, 0, 0, 1});
  CHECK(MeanPool(km, vm, sources).v == std::vector<float>{2, 2, 4, 4});
  CHECK(KeepLast(km, vm, sources).k == std::vector<float>{2, 0, 0, 1});
  // Norms 3, 1, 2, 1: the smallest two, in order; of a tie the earlier.
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

}  // namespace kv
