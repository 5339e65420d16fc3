// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/block_choice.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/base/bytes.h"
#include "tests/support/keep_plan.h"

namespace kv::eviction::block_choice_test {
namespace {

BlockConfig Gate() {
  BlockConfig config;
  config.block_tokens = 32;
  config.sink_tokens = 16;
  config.recent_tokens = 96;
  config.target_lossy_ratio = 3.5f;
  config.trigger_min_tokens = 384;
  return config;
}

}  // namespace

TEST_CASE("the layer range includes both ends and is clamped to the model", "[h2o]") {
  BlockConfig config;
  CHECK(EvictedLayers(Sanitised(config), 5).Contains(4));
  CHECK_FALSE(EvictedLayers(Sanitised(config), 5).Contains(1));
  config.layer_start = 9;  // clamped to the last layer
  CHECK(EvictedLayers(Sanitised(config), 5).Contains(4));
  config.layer_start = 3;
  config.layer_end = 2;
  CHECK_FALSE(EvictedLayers(Sanitised(config), 5).Contains(3));
  config.layer_end = 3;
  CHECK(EvictedLayers(Sanitised(config), 5).Contains(3));
  CHECK_FALSE(EvictedLayers(Sanitised(config), 5).Contains(4));
}

TEST_CASE("sinks round up to blocks and recent tokens down", "[h2o]") {
  BlockConfig config = Gate();
  config.sink_tokens = 33;
  // 1025 tokens: sink blocks 0 and 1, recent from floor(929 / 32) = block 29 at token 928.
  CHECK(ComputeBlockBudget(config, 1025).floor == 64 + 97);
  config.recent_tokens = 0;
  CHECK(ComputeBlockBudget(config, 1025).floor == 64 + 1);  // the partial last block is always kept
  CHECK(ComputeBlockBudget(config, 1024).floor == 64);
  config.recent_tokens = 5000;
  CHECK(ComputeBlockBudget(config, 1025).floor == 1025);
}

TEST_CASE("equal scores keep the lower block, NaN goes first", "[h2o]") {
  BlockConfig config = Gate();
  config.sink_tokens = 0;
  config.recent_tokens = 32;
  config.target_lossy_ratio = 2.0f;
  const BlockChoice equal =
      ChooseBlocks(config, 512, std::vector<double>(16, 1.0), FloorRule::kKeepAll);
  CHECK(equal.plan == KeepPlan{{0, 224}, {480, 32}});
  std::vector<double> scores(16, 1.0);
  scores[0] = NAN;
  scores[3] = -1.0;
  const BlockChoice with_nan = ChooseBlocks(config, 512, scores, FloorRule::kKeepAll);
  CHECK_FALSE(test::Keeps(with_nan.plan, 0));
  CHECK_FALSE(test::Keeps(with_nan.plan, 96));
}

TEST_CASE("a floor at the target keeps all, or in R6 just the floor", "[h2o]") {
  BlockConfig config = Gate();
  config.sink_tokens = 32;
  config.recent_tokens = 32;
  config.target_lossy_ratio = 4.0f;
  const std::vector<double> scores(8, 1.0);
  const BlockChoice all = ChooseBlocks(config, 256, scores, FloorRule::kKeepAll);
  CHECK(all.budget.floor_dominates);
  CHECK(all.evicted == 0);
  CHECK(all.plan.empty());
  const BlockChoice floor = ChooseBlocks(config, 256, scores, FloorRule::kKeepFloor);
  CHECK(floor.plan == KeepPlan{{0, 32}, {224, 32}});
  CHECK(floor.evicted == 192);
}

TEST_CASE("decisions keep sink, recent and exactly the quantised budget", "[h2o]") {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    BlockConfig config;
    config.block_tokens = 1 + random() % 70;
    config.sink_tokens = random() % 100;
    config.recent_tokens = random() % 300;
    config.target_lossy_ratio = 1.0f + static_cast<float>(random() % 50) / 10.0f;
    config = Sanitised(config);
    const auto n = static_cast<uint32_t>(1 + random() % 1500);
    std::vector<double> scores(CeilDiv(n, static_cast<uint64_t>(config.block_tokens)));
    for (double& score : scores) score = static_cast<double>(random() % 1000);
    const BlockChoice d = ChooseBlocks(config, n, scores, FloorRule::kKeepAll);
    CHECK(d.budget == ComputeBlockBudget(config, n));
    CHECK(d.kept + d.evicted == n);
    if (d.plan.empty()) continue;
    CHECK(IsApplicable(d.plan, n));
    CHECK(KeptTokens(d.plan) == d.kept);
    CHECK(d.kept == d.budget.quantised);
    const auto sink = static_cast<uint32_t>(std::min<int64_t>(n, config.sink_tokens));
    const auto recent = static_cast<uint32_t>(std::min<int64_t>(n, config.recent_tokens));
    for (uint32_t t = 0; t < n; ++t) {
      if (t < sink || t >= n - recent) REQUIRE(test::Keeps(d.plan, t));
    }
  }
}

TEST_CASE("plans compose: selecting twice is selecting from the selection", "[h2o]") {
  const KeepPlan positions{{0, 4}, {10, 3}, {20, 5}};
  CHECK(Select(positions, {{0, 12}}) == positions);
  CHECK(Select(positions, {{3, 2}, {6, 2}}) == KeepPlan{{3, 1}, {10, 1}, {12, 1}, {20, 1}});
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> tokens, picked, expected;
    for (uint32_t t = 0; t < 100; ++t) {
      if (random() % 2) tokens.push_back(t);
    }
    for (uint32_t i = 0; i < tokens.size(); ++i) {
      if (random() % 3 != 0) continue;
      picked.push_back(i);
      expected.push_back(tokens[i]);
    }
    CHECK(ListTokens(Select(MakeKeepPlan(tokens), MakeKeepPlan(picked))) == expected);
  }
}

TEST_CASE("a plan applies only if it is ascending, disjoint and inside", "[h2o]") {
  CHECK(IsApplicable({{0, 4}, {4, 2}}, 6));
  CHECK_FALSE(IsApplicable({{0, 4}, {4, 2}}, 5));
  CHECK_FALSE(IsApplicable({{0, 4}, {3, 2}}, 9));
  CHECK_FALSE(IsApplicable({{0, 0}}, 9));
  CHECK_FALSE(IsApplicable({{UINT32_MAX, UINT32_MAX}}, UINT32_MAX));
}

}  // namespace kv::eviction::block_choice_test
