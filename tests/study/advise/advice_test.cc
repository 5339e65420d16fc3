// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "lib/engines/mnn/h2o/mnn_engine.h"
#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "tests/support/attention_case.h"

namespace kv::advise::advice_test {
namespace {

using test::AddGradients;
using test::AttentionCase;
using test::MakeAttentionCase;

constexpr uint64_t kPrompt = 64;

Runs ListRuns(const std::vector<const AttentionCase*>& cases, ThreadPool& pool) {
  Runs runs;
  for (const AttentionCase* made : cases) {
    runs.push_back(std::make_unique<AdviseRun>(fmt::format("run {}", runs.size()), made->snapshot,
                                               made->trace, kPrompt, pool));
  }
  return runs;
}

AdviceRequest SmallRequest(LossKind kind, eviction::Granularity units) {
  AdviceRequest request;
  request.candidates.budgets = {{std::nullopt, 0.5, false}, {std::nullopt, 0.25, false}};
  request.candidates.windows = {8};
  request.candidates.sinks = {4};
  request.measure.kind = kind;
  request.measure.units = units;
  request.measure.rows = 0;
  request.measure.weights = {{0, 0.7}, {1, 0.2}, {2, 1.1}};
  request.limits = {std::nullopt, 0.6};
  return request;
}

// The output of one head at one row over the visible keys, in double.
template <typename Sees>
std::vector<double> PlainOutput(const AttentionCase& made, size_t layer, uint32_t head,
                                uint64_t row, const Sees& sees) {
  const LayerKv& kv = made.snapshot.layers[layer];
  const uint64_t dim = kv.k.head_dim, n = made.trace.rows;
  const uint64_t kv_head = head / (made.trace.query_heads / kv.k.heads);
  const std::vector<float> k = GatherFloats(kv.k, 0, n, Order::kHeadTokenDim);
  const std::vector<float> v = GatherFloats(*kv.v, 0, n, Order::kHeadTokenDim);
  std::vector<float> q(dim);
  ReadQueries(made.trace.layers[layer], head, row, 1, q.data());
  std::vector<double> out(dim);
  double total = 0;
  for (uint64_t j = 0; j <= row; ++j) {
    if (!sees(j)) continue;
    const size_t at = (kv_head * n + j) * dim;
    double score = 0;
    for (uint64_t i = 0; i < dim; ++i)
      score += static_cast<double>(q[i]) * static_cast<double>(k[at + i]);
    const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
    total += weight;
    for (uint64_t i = 0; i < dim; ++i) out[i] += weight * static_cast<double>(v[at + i]);
  }
  for (double& value : out) value /= total;
  return out;
}

// 1/2 mean over rows and samples of (sum over layers, heads, columns of g (o' - o))^2. With samples
// of both kinds, those at evicted states weigh two thirds.
double NatsByHand(const AttentionCase& made, const std::vector<PlanOfLayer>& plans) {
  const GradientRows& rows = *made.trace.gradients;
  double nats = 0;
  for (uint64_t row = rows.begin; row < rows.end(); ++row) {
    std::vector<double> change(rows.samples);
    for (size_t layer = 0; layer < plans.size(); ++layer) {
      const eviction::LayerPlan& plan = plans[layer].plan;
      for (uint32_t head = 0; head < made.trace.query_heads; ++head) {
        const uint32_t unit = plan.units == 1 ? 0 : head / 2;
        const auto whole = PlainOutput(made, layer, head, row, [](uint64_t) { return true; });
        const auto kept = PlainOutput(made, layer, head, row,
                                      [&](uint64_t j) { return plan.last_seen(unit, j) >= row; });
        std::vector<float> g(whole.size());
        for (uint64_t s = 0; s < rows.samples; ++s) {
          ReadGradient(made.trace, made.trace.layers[layer], s, row, head, g.data());
          for (size_t i = 0; i < g.size(); ++i) {
            change[s] += static_cast<double>(g[i]) * (kept[i] - whole[i]);
          }
        }
      }
    }
    for (uint64_t s = 0; s < rows.samples; ++s) {
      const bool is_evicted = s >= rows.recorded();
      const uint64_t count = is_evicted ? rows.evicted : rows.recorded();
      const double share = count == rows.samples ? 1 : is_evicted ? 2.0 / 3 : 1.0 / 3;
      nats += share * change[s] * change[s] / 2 / static_cast<double>(count);
    }
  }
  return nats / static_cast<double>(rows.rows);
}

// Replays one layer in which all heads keep the same tokens, by the eviction study's own replay.
eviction::ReplayResult ReplayOf(const AttentionCase& made, const Candidate& candidate) {
  eviction::ReplayRequest request;
  request.policies = {candidate.policy};
  request.budgets = {candidate.budget};
  request.config = candidate.config;
  request.paper = candidate.paper;
  mnn::h2o::ForEachParameter(candidate.config, [&](std::string_view name, double) {
    if (candidate.policy == "block")
      request.chosen.emplace(name.substr(std::string_view("h2o_").size()));
  });
  request.prompt_tokens = kPrompt;
  ThreadPool pool(1);
  return mnn::h2o::Replay(made.snapshot, made.trace, request, pool);
}

}  // namespace

TEST_CASE("a candidate for all layers costs what replay-h2o says", "[advise][figures]") {
  const auto made = MakeAttentionCase({}, 31);
  ThreadPool pool(2);
  const Runs runs = ListRuns({made.get()}, pool);
  for (const auto units : {eviction::Granularity::kLayer, eviction::Granularity::kKvHead}) {
    AdviceRequest request = SmallRequest(LossKind::kOutput, units);
    const Advice advice = Advise(runs, request, pool);
    REQUIRE(advice.candidates.size() == 20);
    REQUIRE(advice.found.uniform.size() == 20);
    for (const Point& point : advice.found.uniform) {
      const Candidate& candidate = advice.candidates[*point.uniform];
      INFO(candidate.Text());
      const eviction::ReplayResult replayed = ReplayOf(*made, candidate);
      const eviction::ReplayRun& run = replayed.runs.front();
      CHECK(Shown(LossKind::kOutput, point.outcome.loss[0]) ==
            Approx(run.quality->output_error_frobenius).epsilon(1e-5));
      CHECK(point.outcome.ratio() == Approx(run.ratio()));
      CHECK(point.outcome.mean_ratio() == Approx(run.mean_ratio()));
    }
  }
}

TEST_CASE("advice counts no token outside a sliding window as saved", "[advise]") {
  const auto made = MakeAttentionCase({}, 31);
  for (TraceLayer& layer : made->trace.layers) layer.rule.window = 40;
  ThreadPool pool(1);
  const Runs runs = ListRuns({made.get()}, pool);
  AdviceRequest request = SmallRequest(LossKind::kOutput, eviction::Granularity::kLayer);
  request.candidates.policies = {"window"};
  request.candidates.budgets = {{80, 0, false}, {20, 0, false}};
  const Advice advice = Advise(runs, request, pool);
  REQUIRE(advice.found.uniform.size() == 2);
  CHECK(advice.found.uniform[0].outcome.ratio() == Approx(1));
  CHECK(advice.found.uniform[1].outcome.ratio() == Approx(2));
  CHECK(runs.front()->bytes_per_token() == 3 * 2 * 2 * 16 * 2 * 40 / 160);
  CHECK(std::any_of(advice.notes.begin(), advice.notes.end(), [](const std::string& note) {
    return note.find("with a sliding window") != std::string::npos;
  }));
}

TEST_CASE("sensitivities weigh the mean cosine of each layer", "[advise][figures]") {
  const auto made = MakeAttentionCase({}, 32);
  ThreadPool pool(1);
  const Runs runs = ListRuns({made.get()}, pool);
  const AdviceRequest request =
      SmallRequest(LossKind::kSensitivity, eviction::Granularity::kKvHead);
  const Advice advice = Advise(runs, request, pool);
  for (const Point& point : advice.found.uniform) {
    const eviction::ReplayResult replayed = ReplayOf(*made, advice.candidates[*point.uniform]);
    double expected = 0;
    for (uint32_t layer = 0; layer < 3; ++layer) {
      const AttentionSummary& summary = replayed.runs.front().layers[layer].summary;
      expected += request.measure.weights.at(layer) * 2 * (1 - summary.output_cosine.mean);
    }
    CHECK(point.outcome.loss[0] == Approx(expected).epsilon(1e-5));
  }
}

TEST_CASE("a plan measured from its tokens costs what was predicted", "[advise][figures]") {
  const auto first = MakeAttentionCase({}, 33), second = MakeAttentionCase({}, 34);
  ThreadPool pool(2);
  const Runs runs = ListRuns({first.get(), second.get()}, pool);
  for (const LossKind kind : {LossKind::kOutput, LossKind::kSensitivity}) {
    for (const auto units : {eviction::Granularity::kLayer, eviction::Granularity::kKvHead}) {
      const AdviceRequest request = SmallRequest(kind, units);
      const Advice advice = Advise(runs, request, pool);
      REQUIRE(advice.found.best);
      CHECK(advice.found.best->outcome.worst_share() <= 0.6);
      // An arbitrary mixture, in which some parts keep everything.
      std::mt19937 random(3);
      Choice choice;
      for (const Unit& unit : advice.measured().units) {
        choice.push_back(static_cast<uint32_t>(random() % unit.options.size()));
      }
      choice.front() = 0;
      for (const Choice& each : {choice, advice.found.best->choice}) {
        const Outcome predicted = Mixture::Evaluate(advice.measured(), each);
        for (size_t r = 0; r < runs.size(); ++r) {
          const auto layers =
              MakePlans(*runs[r], advice.candidates, advice.measured(), each, 0, pool);
          std::vector<eviction::LayerPlan> plans;
          for (const PlanOfLayer& layer : layers) plans.push_back(layer.plan);
          const Outcome again = MeasurePlans(*runs[r], {&plans, 1}, request.measure, pool)[0];
          CHECK(again.loss[0] == Approx(predicted.loss[r]).epsilon(1e-5));
          CHECK(again.kept_share[0] == Approx(predicted.kept_share[r]));
          CHECK(again.held_share[0] == Approx(predicted.held_share[r]));
        }
      }
      for (size_t r = 0; r < runs.size(); ++r) {
        CHECK(advice.measured_again[r].loss[0] ==
              Approx(advice.found.best->outcome.loss[r]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("gradients give the nats that a plain computation gives", "[advise]") {
  const auto [evicted, kind] = GENERATE(std::pair<uint64_t, LossKind>{0, LossKind::kFisher},
                                        std::pair<uint64_t, LossKind>{1, LossKind::kFisherBoth},
                                        std::pair<uint64_t, LossKind>{3, LossKind::kFisherEvicted});
  const auto made = MakeAttentionCase({2, 4, 2, 8, 96}, 38);
  AddGradients(*made, {70, 20, 3, evicted}, 5);
  ThreadPool pool(2);
  const Runs runs = ListRuns({made.get()}, pool);
  CHECK(FindFisherKind(runs) == kind);
  const AdviceRequest request = SmallRequest(kind, eviction::Granularity::kKvHead);
  const Advice advice = Advise(runs, request, pool);
  CHECK(advice.effects.rows[0].positions.size() == 20);
  std::mt19937 random(4);
  for (int round = 0; round < 12; ++round) {
    Choice choice;
    for (const Unit& unit : advice.measured().units) {
      choice.push_back(static_cast<uint32_t>(random() % unit.options.size()));
    }
    const auto layers = MakePlans(*runs[0], advice.candidates, advice.measured(), choice, 0, pool);
    const double expected = NatsByHand(*made, layers);
    CHECK(Mixture::Evaluate(advice.measured(), choice).loss[0] ==
          Approx(expected).epsilon(1e-4).margin(1e-9));
  }
  // The displayed value is the expected KL: in the study, predictions were lower than real losses.
  CHECK(Shown(LossKind::kFisher, 0.72) == Approx(1));
  CHECK(LossShownAs(LossKind::kFisher, 1) == Approx(0.72));
}

TEST_CASE("runs with gradients of different states share what all of them have", "[advise]") {
  std::vector<std::unique_ptr<AttentionCase>> made;
  for (const uint64_t evicted : {0, 1, 3}) {
    made.push_back(MakeAttentionCase({}, 43));
    AddGradients(*made.back(), {kPrompt, 96, 3, evicted}, 6);
  }
  ThreadPool pool(2);
  const auto kind = [&](std::vector<const AttentionCase*> cases) {
    return FindFisherKind(ListRuns(cases, pool));
  };
  const AttentionCase *recorded = made[0].get(), *both = made[1].get(), *evicted = made[2].get();
  CHECK(kind({recorded, both}) == LossKind::kFisher);
  CHECK(kind({both, both}) == LossKind::kFisherBoth);
  CHECK(kind({both, evicted}) == LossKind::kFisherEvicted);
  CHECK_FALSE(kind({recorded, evicted}));
}

TEST_CASE("events of a mixed plan say what each head holds", "[advise]") {
  const auto made = MakeAttentionCase({}, 35);
  ThreadPool pool(1);
  const Runs runs = ListRuns({made.get()}, pool);
  const AdviceRequest request = SmallRequest(LossKind::kOutput, eviction::Granularity::kKvHead);
  const Advice advice = Advise(runs, request, pool);
  const Choice choice = {0, 3, 5, 5, 19, 8};  // three layers with 2 kv heads each
  const auto plans = MakePlans(*runs[0], advice.candidates, advice.measured(), choice, 0, pool);
  uint64_t last_token = 0, events = 0;
  std::vector<uint64_t> length(6, 0), token(6, 0);
  ForEachEvent(plans, [&](const eviction::PlanEvent& event) {
    CHECK(event.eviction.token >= last_token);
    last_token = event.eviction.token;
    CHECK(KeptTokens(event.kept) == event.eviction.kept);
    CHECK(event.kept.back().end() <= event.eviction.token + 1);
    const uint32_t head = event.kv_head.value_or(0);
    const size_t unit = event.layer * 2 + head;
    CHECK(choice[unit] != 0);
    if (length[unit] > 0) {
      CHECK(event.eviction.length_before == length[unit] + event.eviction.token - token[unit]);
    }
    length[unit] = event.eviction.kept;
    token[unit] = event.eviction.token;
    ++events;
  });
  CHECK(events > 100);
  // Layer 0 keeps all of head 0; layer 1 has a single candidate.
  CHECK(plans[0].plan.units == 2);
  CHECK(plans[0].events[0].empty());
  CHECK(advice.candidates[4].policy == "window");
  CHECK(plans[1].plan.units == 1);
}

TEST_CASE("who drops the first token is told", "[advise]") {
  const auto made = MakeAttentionCase({}, 36);
  ThreadPool pool(1);
  const Runs runs = ListRuns({made.get()}, pool);
  AdviceRequest request = SmallRequest(LossKind::kOutput, eviction::Granularity::kLayer);
  request.candidates.policies = {"window"};
  request.context = 8192;
  const Advice dropped = Advise(runs, request, pool);
  CHECK(UnitsWithoutFirst(dropped.measured(), dropped.found.uniform[0].choice) == 3);
  CHECK(std::any_of(dropped.warnings.begin(), dropped.warnings.end(), [](const std::string& text) {
    return text.find("drops the first token") != std::string::npos;
  }));
  REQUIRE(dropped.at_context);
  CHECK(dropped.at_context->full_bytes == 8192 * 3 * 2 * 2 * 16 * 2);
  request.candidates.policies = {"streaming"};
  const Advice kept = Advise(runs, request, pool);
  CHECK(UnitsWithoutFirst(kept.measured(), kept.found.uniform[0].choice) == 0);
}

TEST_CASE("runs of different models are refused", "[advise]") {
  const auto made = MakeAttentionCase({}, 37);
  const auto other = MakeAttentionCase({4, 4, 2, 16, 160}, 37);
  ThreadPool pool(1);
  const Runs runs = ListRuns({made.get(), other.get()}, pool);
  try {
    Advise(runs, SmallRequest(LossKind::kOutput, eviction::Granularity::kLayer), pool);
    FAIL("passed");
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kTraceMismatch);
  }
}

TEST_CASE("undefined rows leave the mean; a run of nothing else gives no advice", "[advise]") {
  constexpr uint64_t kDefined = 48;  // the first 48 of 96 decode rows are defined
  const auto poison = [](const TensorView& view, uint64_t axis, uint64_t row) {
    std::byte* at =
        const_cast<std::byte*>(view.data) + static_cast<int64_t>(row) * view.strides[axis];
    StoreLE(at, std::numeric_limits<float>::quiet_NaN());
  };
  ThreadPool pool(2);
  for (const LossKind kind : {LossKind::kOutput, LossKind::kSensitivity, LossKind::kFisher}) {
    AdviceRequest request = SmallRequest(kind, eviction::Granularity::kKvHead);
    request.candidates.policies = {"streaming", "h2o", "tova"};
    for (const bool in_gradients : {false, true}) {
      if (in_gradients && kind != LossKind::kFisher) continue;
      INFO(Name(kind) << (in_gradients ? ", gradients" : ", queries"));
      const auto whole = MakeAttentionCase({}, 40), part = MakeAttentionCase({}, 40);
      for (AttentionCase* made : {whole.get(), part.get()})
        AddGradients(*made, {kPrompt, 96, 2}, 6);
      // A trace whose last rows are undefined in one layer, and one that ends before them.
      part->trace.rows = kPrompt + kDefined;
      part->trace.gradients->rows = kDefined;
      for (TraceLayer& layer : part->trace.layers) {
        layer.queries->shape[0] = part->trace.rows;
        layer.gradients->shape[1] = kDefined;
      }
      const TraceLayer& broken = whole->trace.layers[1];
      for (uint64_t row = kDefined; row < 96; ++row) {
        in_gradients ? poison(*broken.gradients, 1, row)
                     : poison(*broken.queries, 0, kPrompt + row);
      }
      const Runs runs = ListRuns({whole.get()}, pool), few = ListRuns({part.get()}, pool);
      const Advice advice = Advise(runs, request, pool), expected = Advise(few, request, pool);
      REQUIRE(advice.found.uniform.size() == expected.found.uniform.size());
      for (size_t i = 0; i < expected.found.uniform.size(); ++i) {
        CHECK(expected.found.uniform[i].outcome.loss[0] > 0);
        CHECK(advice.found.uniform[i].outcome.loss[0] ==
              Approx(expected.found.uniform[i].outcome.loss[0]).epsilon(1e-6));
      }
      CHECK(advice.effects.undefined_rows == std::vector<uint64_t>{96 - kDefined});
      CHECK(std::any_of(advice.warnings.begin(), advice.warnings.end(), [](const auto& text) {
        return text.find("48 of 96 measured rows are undefined") != std::string::npos;
      }));
      for (uint64_t row = 0; row < kDefined; ++row) {
        in_gradients ? poison(*broken.gradients, 1, row)
                     : poison(*broken.queries, 0, kPrompt + row);
      }
      try {
        Advise(runs, request, pool);
        FAIL("advice from no row");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kInvalidData);
        CHECK(std::string(error.what()).find("all 96 measured rows") != std::string::npos);
      }
    }
  }
}

}  // namespace kv::advise::advice_test
