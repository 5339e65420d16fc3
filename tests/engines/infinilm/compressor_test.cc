// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/infinilm/compressor.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "lib/core/base/half.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/mlp_weights.h"

namespace kv::compressor_test {
namespace {

using test::MakeCache;
using test::MakeWeights;

Snapshot Step(const Snapshot& cache, const CompressorWeights& weights,
              const StepSettings& settings = {}, WeightsCast cast = WeightsCast::kNearest,
              int threads = 1) {
  ThreadPool pool(threads);
  return CompressCache(cache, weights, PlanStep(cache, weights, settings), cast, pool);
}

std::vector<float> Values(const KvTensor& tensor) {
  return GatherFloats(tensor, 0, tensor.tokens(), Order::kTokenHeadDim);
}

// Computes the step as specified: token by token and head by head, with the scalar MLP.
std::vector<float> Naive(const KvTensor& tensor, const StepPlan& plan, bool is_value,
                         uint32_t layer, const CompressorWeights& weights) {
  const std::vector<float> x = Values(tensor);
  const uint64_t heads = tensor.heads, dim = tensor.head_dim;
  std::vector<float> y(plan.new_length * heads * dim);
  const std::vector<TokenRange> sources = plan.Sources();
  for (uint64_t token = 0; token < sources.size(); ++token) {
    const auto [begin, end] = sources[token];
    for (uint64_t h = 0; h < heads; ++h) {
      float* out = &y[(token * heads + h) * dim];
      if (end - begin == 1) {
        std::copy_n(&x[(begin * heads + h) * dim], dim, out);
        continue;
      }
      std::vector<float> group;
      for (uint64_t t = begin; t < end; ++t) {
        group.insert(group.end(), &x[(t * heads + h) * dim], &x[(t * heads + h) * dim] + dim);
      }
      const bool image = begin < plan.image_len;
      const MlpRole role = image ? (is_value ? MlpRole::kImageV : MlpRole::kImageK)
                                 : (is_value ? MlpRole::kTextV : MlpRole::kTextK);
      const Mlp mlp = MakeMlp(weights.Mlp(layer, role), tensor.dtype, WeightsCast::kNearest);
      ref::RunMlp(mlp.linears(), mlp.numbers(), group.data(), out);
    }
  }
  return y;
}

}  // namespace

TEST_CASE("the step is the definition, for every dtype and segment", "[mlp]") {
  const CompressorWeights weights = MakeWeights({});
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const uint64_t image : {0, 1, 5, 7, 12, 20}) {
      const Snapshot cache = CastSnapshot(MakeCache({.tokens = 20}), dtype, pool);
      const StepPlan plan = PlanStep(cache, weights, {.image_len = image});
      const Snapshot result = CompressCache(cache, weights, plan, WeightsCast::kNearest, pool);
      REQUIRE(result.layers.size() == 2);
      for (uint32_t layer = 0; layer < 2; ++layer) {
        for (const bool is_value : {false, true}) {
          const LayerKv& from = cache.layers[layer];
          const LayerKv& to = result.layers[layer];
          const KvTensor& tensor = is_value ? *to.v : to.k;
          REQUIRE(tensor.dtype == dtype);
          REQUIRE(tensor.tokens() == plan.new_length);
          const std::vector<float> got = Values(tensor);
          const std::vector<float> expected =
              Naive(is_value ? *from.v : from.k, plan, is_value, layer, weights);
          for (size_t i = 0; i < got.size(); ++i) {
            if (dtype == DType::kF32) {
              REQUIRE(std::abs(got[i] - expected[i]) < 1e-5f);
            } else {
              REQUIRE(got[i] == expected[i]);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the order in which a cache lies in memory does not matter", "[mlp]") {
  const CompressorWeights weights = MakeWeights({});
  const Snapshot expected = Step(MakeCache({}), weights, {.image_len = 7});
  for (const Order order : {Order::kHeadTokenDim, Order::kHeadDimToken}) {
    const Snapshot result = Step(MakeCache({.order = order}), weights, {.image_len = 7});
    for (size_t i = 0; i < expected.layers.size(); ++i) {
      CHECK(Values(result.layers[i].k) == Values(expected.layers[i].k));
      CHECK(Values(*result.layers[i].v) == Values(*expected.layers[i].v));
    }
  }
}

TEST_CASE("a segment too short is copied bit by bit, NaN payloads included", "[mlp]") {
  Snapshot cache = MakeCache({.layers = 1, .tokens = 4});
  Bytes bytes = Gather(cache.layers[0].k, 0, 4, Order::kTokenHeadDim);
  StoreLE<uint32_t>(&bytes[8], 0x7fa12345u);  // a signalling NaN
  cache.spools.push_back(FileSource::FromBytes(bytes, "nan"));
  cache.layers[0].k = ContiguousTensor(cache.spools.back()->bytes().data(), DType::kF32, 4, 3, 4,
                                       Order::kTokenHeadDim);
  const Snapshot result = Step(cache, MakeWeights({.layers = 1}));
  CHECK(Gather(result.layers[0].k, 0, 4, Order::kTokenHeadDim) == bytes);
}

TEST_CASE("heads do not see one another", "[mlp]") {
  // Compressing all heads at once or one at a time gives the same, as tensor parallelism requires.
  const CompressorWeights weights = MakeWeights({});
  const Snapshot cache = MakeCache({.heads = 3});
  Snapshot alone = cache;
  for (LayerKv& layer : alone.layers) {
    for (KvTensor* tensor : {&layer.k, &*layer.v}) {
      tensor->heads = 1;
      tensor->pieces[0].data += tensor->pieces[0].head.Offset(1);
    }
  }
  const Snapshot all = Step(cache, weights), one = Step(alone, weights);
  const uint64_t tokens = one.layers[0].k.tokens();
  for (size_t i = 0; i < 2; ++i) {
    Bytes head(tokens * 4 * sizeof(float));
    Gather(all.layers[i].k, 0, tokens, 1, 1, Order::kTokenHeadDim, head);
    CHECK(head == Gather(one.layers[i].k, 0, tokens, Order::kTokenHeadDim));
  }
}

TEST_CASE("a part of the layers is compressed with their own MLPs", "[mlp]") {
  const CompressorWeights weights = MakeWeights({.layers = 3});
  const Snapshot cache = MakeCache({.layers = 3});
  Snapshot part = cache;
  part.layers.erase(part.layers.begin(), part.layers.begin() + 2);
  CHECK(Values(Step(part, weights).layers[0].k) == Values(Step(cache, weights).layers[2].k));
}

TEST_CASE("truncating weights to f16 repeats csrc, its range error included", "[mlp]") {
  CHECK(TruncateToHalf(1.0f) == 0x3c00);
  CHECK(TruncateToHalf(1.0009765f) == 0x3c00);   // the nearest is 0x3c01
  CHECK(TruncateToHalf(-1.9999999f) == 0xbfff);  // toward zero
  CHECK(TruncateToHalf(65519.0f) == 0x7bff);
  CHECK(TruncateToHalf(65520.0f) == 0x7bff);              // 65504, not infinity
  CHECK(std::isnan(F16ToF32(TruncateToHalf(70000.0f))));  // should be infinity
  CHECK(TruncateToHalf(131072.0f) == 0x8000);             // minus zero
  CHECK(F16ToF32(TruncateToHalf(1e9f)) == Approx(-0.23).epsilon(0.02));
  CHECK(TruncateToHalf(2147483648.0f) == 0x7c00);
  CHECK(TruncateToHalf(-std::numeric_limits<float>::infinity()) == 0xfc00);
  CHECK(std::isnan(F16ToF32(TruncateToHalf(std::numeric_limits<float>::quiet_NaN()))));
  // Finite halves are exact, so they are unchanged.
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float value = F16ToF32(static_cast<uint16_t>(bits));
    REQUIRE(TruncateToHalf(value) == bits);
    REQUIRE(TruncateToHalf(-value) == (bits | 0x8000));
    // Between two neighbours the lower one is taken, even if the other is nearer.
    if (bits + 1 < 0x7c00) {
      const float above = F16ToF32(static_cast<uint16_t>(bits + 1));
      REQUIRE(TruncateToHalf(std::nextafter(above, 0.0f)) == bits);
    }
  }
  CHECK(TruncateToHalf(std::numeric_limits<float>::denorm_min()) == 0);
}

TEST_CASE("casts differ only where a 16-bit cache meets wider weights", "[mlp]") {
  const CompressorWeights weights = MakeWeights({});
  ThreadPool pool(1);
  const auto same = [&](DType dtype) {
    const Snapshot cache = CastSnapshot(MakeCache({}), dtype, pool);
    return Values(Step(cache, weights, {}, WeightsCast::kNearest).layers[0].k) ==
           Values(Step(cache, weights, {}, WeightsCast::kTruncate).layers[0].k);
  };
  CHECK(same(DType::kF32));
  CHECK(same(DType::kBF16));  // csrc rounds bf16 correctly and truncates only f16
  CHECK_FALSE(same(DType::kF16));
}

TEST_CASE("progress counts every byte of the cache once", "[mlp]") {
  struct Counter : Progress {
    uint64_t total = 0, done = 0;
    void Begin(uint64_t bytes) override { total = bytes; }
    void Advance(uint64_t bytes) override { done += bytes; }
  } progress;
  const CompressorWeights weights = MakeWeights({});
  const Snapshot cache = MakeCache({});
  ThreadPool pool(1);
  CompressCache(cache, weights, PlanStep(cache, weights, {}), WeightsCast::kNearest, pool,
                &progress);
  CHECK(progress.total == cache.kv_bytes());
  CHECK(progress.done == progress.total);
}

}  // namespace kv::compressor_test
