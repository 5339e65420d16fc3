// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>

#include "formats/plan/plan.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/eviction/budget.h"
#include "tests/support/keep_plan.h"

namespace kv::eviction_plan_test {
namespace {

Snapshot Cache(uint32_t layers, uint32_t heads, uint64_t tokens) {
  static const Bytes values(1 << 16);
  Snapshot snapshot;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    LayerKv kv;
    kv.index = layer;
    kv.k = ContiguousTensor(values.data(), DType::kF16, tokens, heads, 4, Order::kTokenHeadDim);
    kv.v = kv.k;
    snapshot.layers.push_back(kv);
  }
  return snapshot;
}

}  // namespace

TEST_CASE("the example of docs/plans.md leaves what its table says", "[plan]") {
  const Snapshot cache = Cache(1, 2, 10);
  EvictionPlanWalk walk(cache);
  CHECK(walk.is_common());
  CHECK_FALSE(walk.Apply({5, 0, {}, {{0, 2}, {4, 2}}, 6}));
  CHECK_FALSE(walk.Apply({7, 0, {}, {{0, 1}, {4, 1}, {6, 2}}, 6}));
  // The query at position 9 sees positions 0, 4, 6, 7, 8 and 9.
  CHECK(walk.Layers()[0].kept == std::vector<uint64_t>{6, 6});
  CHECK(walk.Layers()[0].events == 2);
  CHECK(walk.full_bytes() == 10 * 2 * 4 * 2 * 2);
  CHECK(walk.kept_bytes() == Approx(0.6 * static_cast<double>(walk.full_bytes())));
  CHECK(walk.is_common());
  // The same, in the form of a replay's plan.
  eviction::LayerPlan plan;
  plan.Keep({5, 6, 4}, std::vector<KeepPlan>{{{0, 2}, {4, 2}}});
  plan.Keep({7, 6, 4}, std::vector<KeepPlan>{{{0, 1}, {4, 1}, {6, 2}}});
  const auto seen = [&](uint64_t query) {
    std::vector<uint32_t> tokens;
    for (uint32_t key = 0; key <= query; ++key) {
      if (plan.last_seen(0, key) >= query) tokens.push_back(key);
    }
    return tokens;
  };
  CHECK(seen(5) == std::vector<uint32_t>{0, 1, 2, 3, 4, 5});
  CHECK(seen(6) == std::vector<uint32_t>{0, 1, 4, 5, 6});
  CHECK(seen(7) == std::vector<uint32_t>{0, 1, 4, 5, 6, 7});
  CHECK(seen(8) == std::vector<uint32_t>{0, 4, 6, 7, 8});
  CHECK(seen(9) == std::vector<uint32_t>{0, 4, 6, 7, 8, 9});
}

TEST_CASE("plans of replays are sound, and spoilt ones are found", "[plan]") {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    const uint64_t tokens = 40;
    const Snapshot cache = Cache(2, 3, tokens);
    EvictionPlanWalk walk(cache);
    std::vector<eviction::LayerPlan> plans(2);
    std::vector<PlanEvent> events;
    for (uint64_t token = 8; token < tokens; token += 1 + random() % 6) {
      for (uint32_t layer = 0; layer < 2; ++layer) {
        eviction::LayerPlan& plan = plans[layer];
        plan.units = layer == 0 ? 1 : 3;
        std::vector<KeepPlan> kept;
        for (uint32_t unit = 0; unit < plan.units; ++unit) {
          const std::vector<uint32_t> held = ListTokens(plan.HeldBefore(unit, token + 1));
          std::vector<uint32_t> some;
          for (const uint32_t position : held) {
            if (random() % 4 != 0) some.push_back(position);
          }
          kept.push_back(MakeKeepPlan(some));
          std::optional<uint32_t> head;
          if (layer == 1) head = unit;
          events.push_back({token, layer, head, kept.back(), held.size()});
        }
        plan.Keep({token, 0, 0}, kept);
      }
    }
    for (const PlanEvent& event : events) REQUIRE_FALSE(walk.Apply(event));
    const std::vector<EvictionPlanWalk::Layer> layers = walk.Layers();
    CHECK_FALSE(layers[0].by_head);
    CHECK(layers[1].by_head);
    CHECK_FALSE(walk.is_common());
    for (uint32_t head = 0; head < 3; ++head) {
      CHECK(layers[0].kept[head] == KeptTokens(plans[0].HeldBefore(0, tokens)));
      CHECK(layers[1].kept[head] == KeptTokens(plans[1].HeldBefore(head, tokens)));
    }
    // The event takes back a position that was evicted before.
    PlanEvent last = events.back();
    if (last.token + 1 >= tokens) continue;
    const KeepPlan before = last.kept;
    ++last.token;
    last.length_before.reset();
    for (uint32_t position = 0; position <= last.token; ++position) {
      last.kept = {{position, 1}};
      EvictionPlanWalk again = EvictionPlanWalk(cache);
      for (const PlanEvent& event : events) again.Apply(event);
      const bool is_held = position == last.token || test::Keeps(before, position);
      CHECK(again.Apply(last).has_value() == !is_held);
    }
  }
}

TEST_CASE("keeping everything changes nothing", "[plan]") {
  const Snapshot cache = Cache(2, 2, 9);
  EvictionPlanWalk walk(cache);
  for (uint64_t token = 3; token < 9; ++token) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      CHECK_FALSE(
          walk.Apply({token, layer, {}, {{0, static_cast<uint32_t>(token + 1)}}, token + 1}));
    }
  }
  CHECK(walk.kept_bytes() == static_cast<double>(walk.full_bytes()));
  CHECK(walk.is_common());
}

}  // namespace kv::eviction_plan_test
