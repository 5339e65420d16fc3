// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <set>

#include "lib/engines/mnn/runtime/config.h"

namespace kv::mnn::runtime::schedule_test {
namespace {

// Returns those of 6 layers that a call touches, where H2O's range is [2, 5].
std::set<uint32_t> Touched(Config config, uint64_t token_step) {
  std::set<uint32_t> layers;
  for (uint32_t layer = 0; layer < 6; ++layer) {
    const LayerCall call{layer, {2, 5}, token_step, 1000, 300};
    if (TokenBudget(Sanitised(config), call)) layers.insert(layer);
  }
  return layers;
}

uint64_t BudgetOf(const Config& config, uint32_t layer) {
  return TokenBudget(Sanitised(config), {layer, {2, 5}, 1, 1000, 300}).value_or(0);
}

using Layers = std::set<uint32_t>;

}  // namespace

TEST_CASE("scope and mode choose the layers as the engine does", "[lossless]") {
  Config c;
  c.kept_sample_token_interval = 2;
  c.mode = Mode::kProbe;
  c.scope = Scope::kNone;
  CHECK(Touched(c, 1).empty());
  c.scope = Scope::kFrontN;
  CHECK(Touched(c, 1) == Layers{0});
  c.scope = Scope::kH2oKept;
  CHECK(Touched(c, 2) == Layers{2});
  c.scope = Scope::kFrontNAndH2oKept;
  CHECK(Touched(c, 2) == Layers{0, 2});

  c.mode = Mode::kFull;
  CHECK(Touched(c, 1) == Layers{0, 1, 2});
  CHECK(Touched(c, 2) == Layers{0, 1});
  c.kept_sample_layers = 0;
  CHECK(Touched(c, 3) == Layers{0, 1, 2, 3, 4, 5});
  c.front_sample_token_interval = 3;
  CHECK(Touched(c, 3) == Layers{2, 3, 4, 5});

  c.mode = Mode::kStore;
  CHECK(Touched(c, 2) == Layers{2, 3, 4, 5});
  CHECK(Touched(c, 4) == Layers{0, 1, 2, 3, 4, 5});
  c.store_disable_front = true;
  CHECK(Touched(c, 4) == Layers{2, 3, 4, 5});
  c.scope = Scope::kFrontN;
  CHECK(Touched(c, 4).empty());
}

TEST_CASE("the budget is the length in front and H2O's number behind", "[lossless]") {
  Config c;
  c.mode = Mode::kStore;
  c.scope = Scope::kFrontNAndH2oKept;
  CHECK(BudgetOf(c, 1) == 1000);
  CHECK(BudgetOf(c, 3) == 300);
  c.front_n = 4;
  CHECK(BudgetOf(c, 3) == 1000);
  c.store_disable_front = true;
  CHECK(BudgetOf(c, 3) == 300);
  CHECK(BudgetOf(c, 1) == 0);
}

TEST_CASE("the cold range never leaves its budget", "[lossless]") {
  const Config c = Sanitised({});
  CHECK(FindColdRange(c, 10) == ColdRange{10, 10});
  CHECK(FindColdRange(c, 200) == ColdRange{16, 16});
  CHECK(FindColdRange(c, 272) == ColdRange{16, 16});
  CHECK(FindColdRange(c, 1025) == ColdRange{16, 769});
}

TEST_CASE("parameters are read by the engine's names and words", "[lossless]") {
  Config c;
  CHECK(SetParameter("h2o_lossless_scope", "front_n+h2o_kept", c) == SetResult::kSet);
  CHECK(c.scope == Scope::kFrontNAndH2oKept);
  CHECK(SetParameter("h2o_lossless_scope", "kept", c) == SetResult::kSet);
  CHECK(c.scope == Scope::kFrontN);
  CHECK(SetParameter("h2o_lossless_scope", 2.0, c) == SetResult::kSet);
  CHECK(c.scope == Scope::kH2oKept);
  CHECK(SetParameter("h2o_lossless_codec", "gear", c) == SetResult::kSet);
  CHECK_FALSE(c.gear_delta);
  CHECK(SetParameter("h2o_lossless_predictors_k", "delta_seq,pair_delta", c) == SetResult::kSet);
  CHECK(c.predictors_k == PredictorSet{false, true, false});
  CHECK(SetParameter("h2o_lossless_front_n", "two", c) == SetResult::kWrongType);
  CHECK(SetParameter("h2o_lossless_front", 2.0, c) == SetResult::kNoSuchName);
  c.max_queue = -5;
  CHECK(Sanitised(c).max_queue == 1);
  // Every parameter can be written as text and read back.
  Config copy;
  ForEachParameter(GateConfig(Mode::kStore),
                   [&](std::string_view name, const ParameterValue& value) {
                     CHECK(SetParameter(name, value, copy) == SetResult::kSet);
                   });
  CHECK(copy == GateConfig(Mode::kStore));
}

}  // namespace kv::mnn::runtime::schedule_test
