// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/engines/cacheblend/report.h"
#include "tests/support/blend_case.h"

namespace kv::blend::gates_test {
namespace {

TEST_CASE("gates name a figure, a ratio, what it is taken over and a limit", "[blend]") {
  const Gate gate = ParseGate("dev_v_remaining_frac@0.16.mean<=0.2");
  CHECK(gate.Name() == "dev_v_remaining_frac@0.16.mean");
  CHECK(gate.ratio == 0.16);
  CHECK(gate.limit == 0.2);
  CHECK(gate.at_most);
  CHECK(!ParseGate("attn_out_cos_mean@1.layer7>=0.9").at_most);
  for (const char* text : {"", "x", "dev_v_remaining_frac", "dev_v_remaining_frac@0.1<=1",
                           "other@0.1.mean<=1", "dev_v_remaining_frac@0.1.median<=1",
                           "dev_v_remaining_frac@0.1.mean<1", "dev_v_remaining_frac@0.1.layer<=1",
                           "dev_v_remaining_frac@0.1.mean<=", "dev_v_remaining_frac@0.1.mean<=nan",
                           "dev_v_remaining_frac@2.mean<=1", "dev_v_remaining_frac@1.5.mean<=1",
                           "dev_v_remaining_frac<=1@0.1.mean"}) {
    INFO(text);
    CHECK_THROWS_AS(ParseGate(text), Error);
  }
}

TEST_CASE("a gate passes by the figure of the report, and fails where nothing was measured",
          "[blend]") {
  const auto made = test::MakeBlendCase({5, 20, 17, 6}, 1);
  const CachePair caches(WholePrompt(made->full, {}), JoinChunks(made->chunks, BosRule::kNone, {}),
                         made->rope);
  ThreadPool pool(1);
  Request request;
  request.ratio = 0.5;
  request.ratios = {0.5};
  request.suffix = 6;
  Result result = Replay(caches, nullptr, request, pool, nullptr);
  const std::vector<CurveLayer>& layers = result.curve[0].layers;
  REQUIRE(layers.size() == 2);
  const auto value = [&](const std::string& over) {
    return Judge(ParseGate("dev_v_remaining_frac@0.5." + over + "<=1"), result).value;
  };
  CHECK(value("mean") == result.curve[0].mean.selected.v);
  CHECK(value("layer2") == layers[0].selected.v);
  CHECK(value("max") == std::max(layers[0].selected.v, layers[1].selected.v));
  CHECK(value("min") == std::min(layers[0].selected.v, layers[1].selected.v));
  CHECK(Judge(ParseGate("dev_v_remaining_frac@0.5.mean<=1"), result).pass);
  CHECK(!Judge(ParseGate("dev_v_remaining_frac@0.5.mean<=0.0001"), result).pass);
  CHECK(Judge(ParseGate("dev_v_remaining_frac@0.5.mean>=0.0001"), result).pass);
  const GateResult missing = Judge(ParseGate("attn_dev_l2@0.5.mean<=100"), result);
  CHECK(!missing.value);
  CHECK(!missing.pass);
  CHECK_THROWS_AS(Judge(ParseGate("dev_v_remaining_frac@0.5.layer1<=1"), result), Error);
  // A layer without a figure fails the gate, whichever statistic of the layers it limits.
  result.curve[0].layers[1].selected.v = NAN;
  for (const char* over : {"max<=1", "max>=0", "min>=0"}) {
    INFO(over);
    CHECK(!Judge(ParseGate(std::string("dev_v_remaining_frac@0.5.") + over), result).pass);
  }
}

TEST_CASE("the controller hides recomputation behind loading, but not less than 15%", "[blend]") {
  const auto made = test::MakeBlendCase({5, 20, 17, 6}, 2);
  const CachePair caches(WholePrompt(made->full, {}), JoinChunks(made->chunks, BosRule::kNone, {}),
                         made->rope);
  // Tokens x layers x (K and V) x heads x dims x bytes of f32.
  const double bytes = 48.0 * 4 * 2 * 2 * 16 * 4;
  const Controller half = PlanRatio(caches, 2, bytes);
  CHECK(half.load_seconds_per_layer == Approx(0.25));
  CHECK(half.ratio_hide == Approx(0.5));
  CHECK(half.ratio == Approx(0.5));
  CHECK(PlanRatio(caches, 2, 100 * bytes).ratio == 0.15);
  CHECK(PlanRatio(caches, 0.5, bytes).ratio == 1);
}

}  // namespace
}  // namespace kv::blend::gates_test
