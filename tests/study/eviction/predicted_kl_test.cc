// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/engines/mnn/h2o/report.h"
#include "lib/study/eviction/quality.h"
#include "tests/support/attention_case.h"
#include "tests/support/small_replay.h"

namespace kv::eviction::predicted_kl_test {
namespace {

using eviction::ReplayRequest;
using eviction::ReplayResult;
using eviction::ReplayRun;
using test::AddGradients;
using test::AttentionCase;
using test::MakeAttentionCase;
using test::RunOn;
using test::SmallRequest;

// g . (o' - o) of one query head and row, in double and from the formulas.
double Reference(const AttentionCase& made, const LayerPlan& plan, uint32_t head, uint64_t sample,
                 uint64_t row) {
  const TraceLayer& rows = *made.trace.Find(plan.layer);
  const LayerKv& layer = *made.snapshot.Find(plan.layer);
  const uint64_t dim = layer.k.head_dim, v_dim = layer.v->head_dim, heads = layer.k.heads;
  const uint32_t kv_head = head / (made.trace.query_heads / layer.k.heads);
  const std::vector<float> k = GatherFloats(layer.k, 0, row + 1, Order::kTokenHeadDim);
  const std::vector<float> v = GatherFloats(*layer.v, 0, row + 1, Order::kTokenHeadDim);
  std::vector<float> q(dim), g(v_dim);
  ReadQueries(rows, head, row, 1, q.data());
  ReadGradient(made.trace, rows, sample, row, head, g.data());
  double all = 0, held = 0;
  std::vector<double> full(v_dim), kept(v_dim);
  for (uint64_t j = 0; j <= row; ++j) {
    double score = 0;
    for (uint64_t d = 0; d < dim; ++d) {
      score += static_cast<double>(q[d]) * static_cast<double>(k[(j * heads + kv_head) * dim + d]);
    }
    const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
    const bool sees = plan.last_seen(plan.units == 1 ? 0 : kv_head, j) >= row;
    all += weight;
    if (sees) held += weight;
    for (uint64_t d = 0; d < v_dim; ++d) {
      const double value = static_cast<double>(v[(j * heads + kv_head) * v_dim + d]);
      full[d] += weight * value;
      if (sees) kept[d] += weight * value;
    }
  }
  double change = 0;
  for (uint64_t d = 0; d < v_dim; ++d) {
    change += static_cast<double>(g[d]) * (kept[d] / held - full[d] / all);
  }
  return change;
}

// Half the mean of squares over rows and samples, without the rows that `skip` marks. With samples
// of both kinds, those at evicted states weigh two thirds.
double ReferenceNats(
    const AttentionCase& made, const ReplayRun& run, uint64_t prompt,
    const std::function<bool(uint64_t row)>& skip = [](uint64_t) { return false; }) {
  const GradientRows& rows = *made.trace.gradients;
  const bool has_both = rows.evicted > 0 && rows.recorded() > 0;
  const auto weight = [&](uint64_t sample) {
    if (!has_both) return 1 / static_cast<double>(rows.samples);
    return sample < rows.recorded() ? 1.0 / 3 / static_cast<double>(rows.recorded())
                                    : 2.0 / 3 / static_cast<double>(rows.evicted);
  };
  double sum = 0, count = 0;
  for (uint64_t row = std::max(prompt, rows.begin); row < rows.end(); ++row) {
    if (skip(row)) continue;
    for (uint64_t sample = 0; sample < rows.samples; ++sample) {
      double change = 0;
      for (const LayerPlan& plan : run.plans) {
        if (plan.events.empty()) continue;
        for (uint32_t head = 0; head < made.trace.query_heads; ++head) {
          change += Reference(made, plan, head, sample, row);
        }
      }
      sum += weight(sample) * change * change / 2;
    }
    ++count;
  }
  return sum / count;
}

bool Warns(const ReplayResult& result, std::string_view what) {
  return std::any_of(
      result.warnings.begin(), result.warnings.end(),
      [&](const std::string& warning) { return warning.find(what) != std::string::npos; });
}

}  // namespace

TEST_CASE("predicted nats are half the mean square of g . do summed over layers and heads",
          "[h2o][kl][figures]") {
  // Four query heads share two kv heads; V is narrower than K; gradients begin inside the decode.
  const auto made = MakeAttentionCase({3, 4, 2, 16, 160, 10}, 21);
  AddGradients(*made, {70, 80, 3}, 22);
  ReplayRequest request = SmallRequest();
  request.policies = {"full", "window", "h2o"};
  for (const Granularity granularity : {Granularity::kLayer, Granularity::kKvHead}) {
    request.granularity = granularity;
    const ReplayResult result = RunOn(*made, request, 2);
    REQUIRE(result.runs.size() == 3);
    CHECK(result.kl_method == KlMethod::kGradients);
    for (const ReplayRun& run : result.runs) {
      INFO(run.policy);
      REQUIRE(run.predicted_kl);
      CHECK(run.predicted_kl->rows == 80);
      CHECK(run.predicted_kl->population == 80);
      CHECK(run.predicted_kl->samples == 3);
      if (run.policy == "full") {
        CHECK(run.predicted_kl->nats == 0);
        continue;
      }
      CHECK(run.predicted_kl->nats ==
            Approx(ReferenceNats(*made, run, result.prompt)).epsilon(1e-5));
      CHECK(run.predicted_kl->low() < run.predicted_kl->expected());
      CHECK(run.predicted_kl->expected() < run.predicted_kl->high());
    }
  }
  request.policies = {"window"};
  request.measure_quality = false;
  CHECK_FALSE(RunOn(*made, request).runs[0].predicted_kl);
}

TEST_CASE("samples at evicted states weigh two thirds, and have calibrations of their own",
          "[h2o][kl][figures]") {
  ReplayRequest request = SmallRequest();
  request.policies = {"window", "full"};
  const std::pair<uint64_t, Basis> cases[] = {
      {0, Basis::kRecorded}, {3, Basis::kBoth}, {4, Basis::kBoth}, {5, Basis::kEvicted}};
  std::set<double> medians;
  for (const auto& [evicted, basis] : cases) {
    INFO(evicted);
    const auto made = MakeAttentionCase({}, 41);
    AddGradients(*made, {64, 96, 5, evicted}, 42);
    // A row that is undefined in a sample of either kind leaves the mean of both.
    const TensorView& g = *made->trace.layers[1].gradients;
    for (const auto& [sample, position] : {std::pair{0, 130}, std::pair{4, 140}}) {
      const int64_t at = sample * g.strides[0] + (position - 64) * g.strides[1];
      StoreLE(const_cast<std::byte*>(g.data) + at, NAN);
    }
    const ReplayResult result = RunOn(*made, request);
    const PredictedKl& kl = *result.runs[0].predicted_kl;
    CHECK(kl.basis == basis);
    CHECK(kl.samples == 5);
    CHECK(kl.rows == 94);
    CHECK(result.undefined_gradients.rows == 2);
    const auto skip = [](uint64_t row) { return row == 130 || row == 140; };
    CHECK(kl.nats ==
          Approx(ReferenceNats(*made, result.runs[0], result.prompt, skip)).epsilon(1e-5));
    CHECK(kl.standard_error > 0);
    CHECK(kl.expected() == Approx(kl.nats / FindCalibration(kl.method, kl.cause, basis).median));
    medians.insert(kl.calibration().median);
    CHECK(std::isnan(result.runs[1].predicted_kl->top_share));
  }
  CHECK(medians.size() == 3);
}

TEST_CASE("the rows that lose most are named", "[kl]") {
  const uint64_t positions[] = {40, 50, 60, 70, 80, 90};
  // d^2 / 2 is 8, 2, 0.5, 18, undefined, 0.5.
  const LogPChange change{1, 6, {4, -2, 1, 6, NAN, 1}};
  const PredictedKl kl = *PredictKl(change, 6, positions);
  CHECK(kl.top_rows == std::vector<uint64_t>{70, 40, 50, 60});
  CHECK(kl.top_share == Approx(28.5 / 29));
  CHECK(PredictKl(change, 6)->top_rows == std::vector<uint64_t>{3, 0, 1, 2});
  CHECK(RemarkOnTopRows(kl).empty());  // the rows are too few for a remark
  std::vector<double> values(100, 1);
  values[7] = 20;
  CHECK(RemarkOnTopRows(*PredictKl({1, 100, values}, 100)) ==
        "4 of 100 rows carry 81 % of it, at positions 7, 0, 1, 2");
  values[7] = 2;
  CHECK(RemarkOnTopRows(*PredictKl({1, 100, values}, 100)).empty());
}

TEST_CASE("windows, softcaps and recorded probabilities predict alike", "[h2o][kl]") {
  ReplayRequest request = SmallRequest();
  request.policies = {"streaming"};
  auto made = MakeAttentionCase({}, 23);
  AddGradients(*made, {64, 96, 2}, 24);
  made->trace.layers[1].rule.softcap = 5;
  made->trace.layers[2].rule.window = 40;
  const double by_queries = RunOn(*made, request).runs[0].predicted_kl->nats;
  test::RecordProbabilities(*made);
  CHECK(RunOn(*made, request).runs[0].predicted_kl->nats == Approx(by_queries).epsilon(1e-4));
}

TEST_CASE("a mixture of plans predicts the sum of its parts", "[h2o][kl]") {
  const auto made = MakeAttentionCase({1, 4, 2, 16, 160}, 25);
  AddGradients(*made, {100, 60, 2}, 26);
  const LayerAttention attention(made->trace, made->trace.layers[0], made->snapshot.layers[0]);
  REQUIRE(HasChanges(attention));
  // In `mixed`, head 0 has the plan of `a` and head 1 that of `b`.
  LayerPlan a, b, mixed;
  a.units = b.units = mixed.units = 2;
  for (uint64_t position = 0; position < 90; ++position) {
    for (uint32_t unit = 0; unit < 2; ++unit) {
      if (position % 2 == 0) a.Drop(unit, position, 95);
      if (position % 5 != 0) b.Drop(unit, position, 120);
    }
    if (position % 2 == 0) mixed.Drop(0, position, 95);
    if (position % 5 != 0) mixed.Drop(1, position, 120);
  }
  const std::vector<const LayerPlan*> plans = {&a, &b, &mixed};
  std::vector<AttentionSamples> pooled(3);
  ThreadPool pool(2);
  const std::vector<LayerQuality> measured =
      MeasureLayer(attention, plans, ChooseRows(100, 160, 0, 0), pooled, pool, true);
  LogPChange sum, whole;
  sum.Add(measured[0].log_p_changes[0]);
  sum.Add(measured[1].log_p_changes[1]);
  for (const LogPChange& of_head : measured[2].log_p_changes) whole.Add(of_head);
  REQUIRE(measured[2].log_p_changes.size() == 2);
  REQUIRE(sum.values.size() == 120);
  CHECK(sum.values == whole.values);
  CHECK(PredictKl(sum, 60)->nats == PredictKl(whole, 60)->nats);
  CHECK(PredictKl(sum, 60)->nats > 0);
  // A prediction is made only if it is requested.
  CHECK(MeasureLayer(attention, plans, ChooseRows(100, 160, 0, 0), pooled, pool)[0]
            .log_p_changes.empty());
}

TEST_CASE("rows that are undefined are left out of the prediction", "[h2o][kl]") {
  auto made = MakeAttentionCase({}, 27);
  AddGradients(*made, {64, 96, 2}, 28);
  const auto spoil = [](const TensorView& view, size_t at, float value) {
    StoreLE(const_cast<std::byte*>(view.data) + 4 * at, value);
  };
  // Undefined values: a query of layer 1 at position 120, and gradients of layer 2 at 130 and of
  // layer 0, which loses nothing, at 140.
  spoil(*made->trace.layers[1].queries, (120 * 4 + 2) * 16 + 5, NAN);
  spoil(*made->trace.layers[2].gradients, (size_t{96} + 130 - 64) * 4 * 16 + 7, INFINITY);
  spoil(*made->trace.layers[0].gradients, (size_t{140} - 64) * 4 * 16, NAN);
  ReplayRequest request = SmallRequest();
  request.policies = {"window"};
  const ReplayResult result = RunOn(*made, request);
  CHECK(result.undefined.rows == 1);
  CHECK(result.undefined_gradients.rows == 2);
  CHECK(result.undefined_gradients.first_position == 140);
  CHECK(Warns(result, "2 of 288 rows of gradients hold NaN or Inf"));
  REQUIRE(result.runs[0].predicted_kl);
  CHECK(result.runs[0].predicted_kl->rows == 93);
  const auto skip = [](uint64_t row) { return row == 120 || row == 130 || row == 140; };
  CHECK(result.runs[0].predicted_kl->nats ==
        Approx(ReferenceNats(*made, result.runs[0], result.prompt, skip)).epsilon(1e-5));
}

TEST_CASE("no nats are predicted where a layer that loses something has no gradients",
          "[h2o][kl]") {
  ReplayRequest request = SmallRequest();  // layer 0 keeps everything
  request.policies = {"full", "window"};
  auto made = MakeAttentionCase({}, 29);
  CHECK_FALSE(RunOn(*made, request).kl_method);
  AddGradients(*made, {64, 96, 2}, 30);
  made->trace.layers[0].gradients.reset();
  CHECK(RunOn(*made, request).runs[1].predicted_kl);
  made->trace.layers[2].gradients.reset();
  const ReplayResult without = RunOn(*made, request);
  CHECK(without.runs[0].predicted_kl->nats == 0);
  CHECK_FALSE(without.runs[1].predicted_kl);
  CHECK(Warns(without, "1 evicting layer has no gradients in the trace, or no V: 2"));
  const nlohmann::ordered_json json = ToJson(
      mnn::h2o::ReportFields().Object({made->snapshot, made->trace, request, without, false}));
  CHECK(json["runs"][0]["predicted_kl"]["nats"] == 0.0);
  CHECK(json["runs"][1]["predicted_kl"].is_null());
  // A layer that is not in the trace keeps everything.
  made->trace.layers.pop_back();
  CHECK(RunOn(*made, request).runs[1].predicted_kl);
  // These gradients belong to rows before decode.
  auto early = MakeAttentionCase({}, 29);
  AddGradients(*early, {0, 64, 2}, 30);
  const ReplayResult none = RunOn(*early, request);
  CHECK_FALSE(none.runs[1].predicted_kl);
  CHECK(Warns(none, "no measured row has gradients"));
}

TEST_CASE("a prediction from a sample of rows lies within its standard error",
          "[h2o][kl][figures]") {
  const auto made = MakeAttentionCase({2, 4, 2, 16, 700}, 31);
  AddGradients(*made, {100, 500, 4}, 32);
  ReplayRequest request = SmallRequest();
  request.policies = {"h2o"};
  const PredictedKl all = *RunOn(*made, request).runs[0].predicted_kl;
  CHECK(all.rows == 500);
  CHECK(all.standard_error > 0);  // every row is measured, but its tokens were drawn
  CHECK(all.standard_error < 0.2 * all.nats);
  request.quality_rows = 100;
  double errors = 0;
  int within = 0;
  for (request.seed = 1; request.seed <= 20; ++request.seed) {
    const PredictedKl part = *RunOn(*made, request).runs[0].predicted_kl;
    CHECK(part.rows < 100);  // rows without gradients are left out
    CHECK(part.population == 500);
    CHECK(part.standard_error > all.standard_error);
    const double off = std::abs(part.nats - all.nats) / part.standard_error;
    errors += off;
    within += off < 2;
  }
  CHECK(within >= 17);
  CHECK(errors / 20 > 0.2);  // standard errors are not much too large
}

TEST_CASE("standard errors are those of two stages of sampling", "[kl]") {
  // Two rows have the samples {1, 3} and {5, 7} of d, so d^2 / 2 is {0.5, 4.5} and {12.5, 24.5}.
  const LogPChange change{2, 2, {1, 5, 3, 7}};
  const PredictedKl all = *PredictKl(change, 2);
  CHECK(all.nats == Approx(10.5));
  // The variances within the rows are 8 and 72, their mean is 40, and 2 rows x 2 samples divide it.
  CHECK(all.standard_error == Approx(std::sqrt(40.0 / 4)));
  // With samples of both kinds the variances add up by the squares of their shares.
  const LogPChange both{4, 2, {1, 5, 3, 7, 1, 5, 3, 7}, 2};
  CHECK(PredictKl(both, 2)->nats == Approx(10.5));
  CHECK(PredictKl(both, 2)->standard_error == Approx(std::sqrt((1 + 4) / 9.0 * 40 / 4)));
  // Out of 10 rows: the variance between the means 2.5 and 18.5 is 128.
  CHECK(PredictKl(change, 10)->standard_error == Approx(std::sqrt(0.8 * 128 / 2 + 0.2 * 40 / 4)));
  // With one sample per row, the variance between rows is used.
  CHECK(PredictKl({1, 2, {1, 5}}, 2)->standard_error == Approx(std::sqrt(72.0 / 2)));
  CHECK(std::isnan(PredictKl({1, 1, {1}}, 1)->standard_error));
  CHECK_FALSE(PredictKl({1, 1, {NAN}}, 1));
  CHECK_FALSE(PredictKl(LogPChange{}, 0));
}

TEST_CASE("sensitivities weigh each layer's cosine", "[h2o][kl]") {
  auto made = MakeAttentionCase({}, 33);
  AddGradients(*made, {64, 96, 2}, 34);  // not asked
  ReplayRequest request = SmallRequest();
  request.policies = {"window", "full"};
  request.sensitivity = LayerWeights{{1, 0.5}, {2, 3.0}};
  const ReplayResult result = RunOn(*made, request);
  CHECK(result.kl_method == KlMethod::kSensitivity);
  const ReplayRun& run = result.runs[0];
  REQUIRE(run.predicted_kl);
  CHECK(run.predicted_kl->samples == 0);
  CHECK(run.predicted_kl->rows == 96);
  CHECK(run.predicted_kl->standard_error == 0);
  CHECK(run.predicted_kl->nats == Approx(2 * 0.5 * (1 - run.layers[1].summary.output_cosine.mean) +
                                         2 * 3.0 * (1 - run.layers[2].summary.output_cosine.mean)));
  CHECK(result.runs[1].predicted_kl->nats == 0);
  request.quality_rows = 40;
  CHECK(RunOn(*made, request).runs[0].predicted_kl->standard_error > 0);
  request.sensitivity->erase(2);
  CHECK_FALSE(RunOn(*made, request).runs[0].predicted_kl);
  (*request.sensitivity)[3] = 1;
  CHECK_THROWS_AS(RunOn(*made, request), Error);
}

}  // namespace kv::eviction::predicted_kl_test
