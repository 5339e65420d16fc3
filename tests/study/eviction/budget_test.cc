// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/budget.h"

#include <catch2/catch.hpp>

#include "lib/core/base/error.h"

namespace kv::eviction::budget_test {
namespace {

KeepBudget Share(double share) { return {std::nullopt, share, false}; }
KeepBudget Tokens(uint64_t tokens) { return {tokens, 1, false}; }
const PolicyInfo& Policy(std::string_view name) { return *FindPolicy(name); }

}  // namespace

TEST_CASE("a share of whole numbers is whole, whatever doubles make of it", "[h2o][budget]") {
  CHECK(Share(0.29).At(100) == 29);  // 0.29 * 100 is 28.999999999999996
  CHECK(Share(0.07).At(100) == 7);   // 7.000000000000001
  CHECK(Share(1 / 3.0).At(192) == 64);
  CHECK(Share(1 / 49.0).At(49) == 1);
  CHECK(Share(0.5).At(7) == 3);  // 3, not 4: a budget is never exceeded
  CHECK(Share(0.001).At(7) == 1);
  CHECK(Share(1).At(7) == 7);
  CHECK(Tokens(5).At(3) == 3);
  CHECK(Tokens(5).At(300) == 5);
}

TEST_CASE("a pyramid falls as the paper has it and adds up", "[h2o][budget]") {
  PaperParameters paper;
  paper.window = 16;
  // Over 5 layers, budgets fall from max = 2 * 400 - 20 = 780 to min = 20.
  for (const uint32_t index : {0u, 1u, 2u, 3u, 4u}) {
    CHECK(PyramidBudget(paper, {true, index, 5}, 400, 1000) == 780u - 190 * index);
  }
  // Limited to the tokens of the first layer before its window, 984, so that the last layer keeps
  // 216.
  CHECK(PyramidBudget(paper, {true, 0, 5}, 600, 1000) == 984u);
  CHECK(PyramidBudget(paper, {true, 4, 5}, 600, 1000) == 216u);
  // No budget: the last layer could not hold the window, or there is only one layer.
  CHECK(!PyramidBudget(paper, {true, 0, 5}, 300, 1000));
  CHECK(!PyramidBudget(paper, {true, 0, 1}, 400, 1000));
  for (const uint64_t keep : {321u, 333u, 350u, 477u, 501u}) {
    for (const uint32_t count : {2u, 3u, 7u, 32u}) {
      uint64_t sum = 0;
      for (uint32_t i = 0; i < count; ++i)
        sum += *PyramidBudget(paper, {true, i, count}, keep, 1000);
      CHECK(sum == keep * count);
    }
  }
}

TEST_CASE("block keeps whole blocks and never less than its floor", "[h2o][budget]") {
  PolicyOptions options;
  options.on_budget = true;
  options.config.block_tokens = 8;
  options.config.sink_tokens = 4;
  options.config.recent_tokens = 10;
  options.config = Sanitised(options.config);
  CHECK(BlockFloor(options.config) == 18);
  const LayerSchedule schedule =
      BudgetSchedule(Policy("block"), options, Tokens(30), {63, 400}, {true, 0, 2});
  LengthWalk walk(schedule);
  for (uint64_t token = 63; token < 400; ++token) {
    const uint64_t held = walk.At(token);
    CHECK(held >= 30);
    CHECK(held < 30 + 8);
  }
  CHECK_THROWS_AS(RequireFloor(Policy("block"), options.config, {}, Tokens(17), 400), Error);
  CHECK_NOTHROW(RequireFloor(Policy("block"), options.config, {}, Tokens(18), 400));
  CHECK_NOTHROW(RequireFloor(Policy("window"), options.config, {}, Tokens(1), 400));
  CHECK_THROWS_AS(RequireFloor(Policy("streaming"), options.config, {}, Tokens(3), 400), Error);
}

TEST_CASE("what goes after the last row alone is no eviction", "[h2o][budget]") {
  PolicyOptions options;
  options.on_budget = true;
  CHECK(BudgetSchedule(Policy("tova"), options, Tokens(30), {99, 100}, {true, 0, 1})
            .evictions.empty());
  const LayerSchedule two =
      BudgetSchedule(Policy("tova"), options, Tokens(30), {98, 100}, {true, 0, 1});
  CHECK(two.evictions.size() == 2);
  CHECK(two.evictions_in_effect(100) == 1);
  CHECK(LengthWalk(two).At(99) == 30);
}

TEST_CASE("a budget held at one row in eight holds at the last row", "[h2o][budget]") {
  PolicyOptions options;
  options.on_budget = true;
  for (const char* name : {"tova", "snapkv", "block"}) {
    INFO(name);
    options.paper.grow = false;
    options.config.block_tokens = 1;
    options.config.sink_tokens = options.config.recent_tokens = 0;
    options.config = Sanitised(options.config);
    const auto evictions =
        BudgetSchedule(Policy(name), options, Share(0.5), {99, 400, 8}, {true, 0, 1}).evictions;
    REQUIRE(evictions.size() == 38);
    CHECK(evictions.front() == Eviction{103, 104, 52});
    CHECK(evictions.back() == Eviction{399, 204, 200});
    for (size_t i = 1; i < evictions.size(); ++i) {
      CHECK(evictions[i].token == evictions[i - 1].token + 8);
      CHECK(evictions[i].length_before == evictions[i - 1].kept + 8);
    }
  }
}

TEST_CASE("parameters that nobody chose fit the budget", "[h2o][budget]") {
  for (const uint64_t least : {1u, 2u, 7u, 24u, 243u, 5000u}) {
    std::vector<std::string> followed;
    const BlockConfig config = FollowTrace({}, {}, least, followed);
    INFO(least);
    CHECK(BlockFloor(config) <= least);
    CHECK(config.layer_start == 0);
    CHECK(followed.size() == 5);
  }
  std::vector<std::string> followed;
  BlockConfig chosen;
  chosen.block_tokens = 64;
  const BlockConfig config = FollowTrace(chosen, {"block_tokens"}, 40, followed);
  CHECK(config.block_tokens == 64);
  CHECK(BlockFloor(config) <= 40);
  // Long caches get the engine's own parameters.
  followed.clear();
  const BlockConfig engine = FollowTrace({}, {}, 1 << 20, followed);
  CHECK(engine.block_tokens == 64);
  CHECK(engine.sink_tokens == 32);
  CHECK(engine.recent_tokens == 256);
}

TEST_CASE("snapkv and pyramid compress the prompt alone, as published", "[h2o][budget]") {
  PolicyOptions options;
  options.on_budget = true;
  for (const char* name : {"snapkv", "pyramid"}) {
    const LayerSchedule once =
        BudgetSchedule(Policy(name), options, Share(0.5), {199, 400}, {true, 0, 1});
    REQUIRE(once.evictions.size() == 1);
    CHECK(once.evictions[0] == Eviction{199, 200, 100});
    CHECK(LengthWalk(once).At(399) == 300);
    // A prompt within its budget stays whole, however long the cache grows.
    CHECK(BudgetSchedule(Policy(name), options, Tokens(250), {199, 400}, {true, 0, 1})
              .evictions.empty());
  }
  options.paper.grow = false;
  CHECK(BudgetSchedule(Policy("snapkv"), options, Tokens(250), {199, 400}, {true, 0, 1})
            .evictions.front()
            .token == 250);
}

}  // namespace kv::eviction::budget_test
