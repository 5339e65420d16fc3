// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/core/snapshot/cast.h"
#include "lib/engines/infinilm/compressor.h"
#include "tests/support/mlp_weights.h"

namespace kv::mlp_threads_test {

using test::MakeCache;
using test::MakeWeights;

TEST_CASE("tiles and threads do not show in the result of an MLP", "[mlp]") {
  const CompressorWeights weights = MakeWeights({.layers = 1, .head_dim = 8, .factor = 5});
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const Mlp mlp = MakeMlp(weights.Mlp(0, MlpRole::kTextK), dtype, WeightsCast::kNearest);
    const uint64_t rows = 3 * mlp.tile_rows() + 5;
    std::vector<float> x(rows * mlp.in());
    for (float& value : x) value = normal(random);
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 4}) {
      ThreadPool pool(threads);
      std::vector<float> y(rows * mlp.out());
      test::RunMlp(mlp, x.data(), rows, y.data(), pool);
      results.push_back(std::move(y));
    }
    CHECK(results[1] == results[0]);
    CHECK(results[2] == results[0]);
  }
}

TEST_CASE("a compressed cache has the same bits for every number of threads", "[mlp]") {
  const CompressorWeights weights = MakeWeights({.head_dim = 16, .hidden = 16});
  std::vector<Bytes> first;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    const Snapshot cache =
        CastSnapshot(MakeCache({.heads = 40, .head_dim = 16, .tokens = 400}), DType::kF32, pool);
    const StepPlan plan = PlanStep(cache, weights, {.image_len = 50});
    const Snapshot result = CompressCache(cache, weights, plan, WeightsCast::kNearest, pool);
    std::vector<Bytes> tensors;
    for (const LayerKv& layer : result.layers) {
      tensors.push_back(Gather(layer.k, 0, plan.new_length, Order::kTokenHeadDim));
      tensors.push_back(Gather(*layer.v, 0, plan.new_length, Order::kTokenHeadDim));
    }
    if (first.empty()) first = tensors;
    CHECK(tensors == first);
  }
}

}  // namespace kv::mlp_threads_test
