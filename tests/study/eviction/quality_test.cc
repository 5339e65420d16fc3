// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "lib/engines/mnn/h2o/report.h"
#include "tests/support/attention_case.h"
#include "tests/support/small_replay.h"

namespace kv::eviction::quality_test {
namespace {

using Json = nlohmann::ordered_json;
using eviction::ReplayRequest;
using eviction::ReplayResult;
using eviction::ReplayRun;
using test::AttentionCase;
using test::MakeAttentionCase;
using test::RecordProbabilities;
using test::RunOn;
using test::SmallRequest;

}  // namespace

TEST_CASE("figures of evicting rows are those of all rows without the rows that lose nothing",
          "[h2o]") {
  const auto made = MakeAttentionCase({}, 11);
  ReplayRequest request = SmallRequest();
  request.policies = {"h2o", "full"};
  const ReplayResult result = RunOn(*made, request);
  const ReplayRun& run = result.runs[0];
  const AttentionSummary &all = *run.quality, &evicting = *run.evicting;
  const uint64_t heads = made->trace.query_heads;
  // Counts rows, not pairs of row and head: the first eviction of layers 1 and 2 comes at token 69
  // or later.
  uint64_t expected = 0;
  for (const LayerPlan& plan : run.plans) {
    if (!plan.events.empty()) expected += result.end - (plan.events.front().token + 1);
  }
  CHECK(all.rows == 3 * (result.end - result.prompt));
  CHECK(all.evicting_rows == expected);
  CHECK(evicting.rows == expected);
  CHECK(evicting.evicting_rows == expected);
  CHECK(evicting.mass.count == expected * heads);
  CHECK(result.runs[0].layers[0].evicting.rows == 0);
  CHECK(result.runs[1].evicting->rows == 0);
  const double share = static_cast<double>(expected) / static_cast<double>(all.rows);
  CHECK(all.mass.mean == Approx(share * evicting.mass.mean + (1 - share)));
  CHECK(all.output_error.mean == Approx(share * evicting.output_error.mean));
  CHECK(all.kl.mean == Approx(share * evicting.kl.mean));
  CHECK(evicting.output_error_frobenius > all.output_error_frobenius);
  const Json json = ToJson(
      mnn::h2o::ReportFields().Object({made->snapshot, made->trace, request, result, false}));
  CHECK(json["runs"][0]["evicting"]["mass"]["mean"] == evicting.mass.mean);
  CHECK(json["runs"][0]["evicting"]["layers"] == Json({1, 2}));
  CHECK(json["runs"][0]["layers"][0]["evicting"]["mass"]["mean"].is_null());
  CHECK(json["runs"][0]["layers"][2]["heads"][3]["evicting"]["rows"] ==
        run.layers[2].evicting.rows);
  CHECK(json["runs"][1]["evicting"]["output_error"].is_null());
}

TEST_CASE("a sample of rows gives the figures of all within its standard error", "[h2o][figures]") {
  const auto made = MakeAttentionCase({3, 4, 2, 16, 700}, 12);
  ReplayRequest request = SmallRequest();
  request.policies = {"random", "h2o"};
  const ReplayResult all = RunOn(*made, request);
  CHECK(all.runs[0].evicting->standard_error.mass == 0);
  CHECK_FALSE(all.measured.is_sample());
  double errors = 0;
  uint64_t within = 0, figures = 0;
  for (request.seed = 1; request.seed <= 10; ++request.seed) {
    request.quality_rows = 80;
    request.policies = {"h2o"};  // the choice of "random" depends on the seed
    const ReplayResult part = RunOn(*made, request);
    REQUIRE(part.measured.positions.size() == 80);
    CHECK(part.measured.population == 636);
    CHECK(part.runs[0].quality->rows == 240);
    for (const auto& [mine, whole, error] :
         {std::tuple{part.runs[0].quality->mass.mean, all.runs[1].quality->mass.mean,
                     part.runs[0].quality->standard_error.mass},
          {part.runs[0].evicting->output_error.mean, all.runs[1].evicting->output_error.mean,
           part.runs[0].evicting->standard_error.output_error}}) {
      CHECK(error > 0);
      errors += std::abs(mine - whole) / error;
      within += std::abs(mine - whole) < 2 * error;
      ++figures;
    }
  }
  CHECK(within >= figures * 8 / 10);
  // The standard errors are not far too large either.
  CHECK(errors / static_cast<double>(figures) > 0.2);
  // The same seed draws the same rows, another seed draws others.
  CHECK(ChooseRows(64, 700, 80, 3).positions == ChooseRows(64, 700, 80, 3).positions);
  CHECK(ChooseRows(64, 700, 80, 3).positions != ChooseRows(64, 700, 80, 4).positions);
  CHECK(ChooseRows(64, 700, 0, 3).positions.size() == 636);
}

bool Warns(const ReplayResult& result, std::string_view what) {
  return std::any_of(
      result.warnings.begin(), result.warnings.end(),
      [&](const std::string& warning) { return warning.find(what) != std::string::npos; });
}

TEST_CASE("undefined rows are counted and stay out of every figure", "[h2o]") {
  const auto whole = MakeAttentionCase({}, 13);
  auto spoilt = MakeAttentionCase({}, 13);
  // One element of one head of the queries of layer 1 at position 120.
  std::byte* q = const_cast<std::byte*>(spoilt->trace.layers[1].queries->data);
  StoreLE(q + 4 * ((120 * 4 + 2) * 16 + 5), -INFINITY);
  ReplayRequest request = SmallRequest();
  request.policies = {"window"};
  const ReplayResult a = RunOn(*whole, request), b = RunOn(*spoilt, request);
  CHECK(b.undefined.rows == 1);
  CHECK(b.undefined.first_layer == 1);
  CHECK(b.undefined.first_position == 120);
  CHECK(Warns(b, "NaN or Inf"));
  CHECK_FALSE(Warns(a, "NaN or Inf"));
  const AttentionSummary &good = *a.runs[0].evicting, &bad = *b.runs[0].evicting;
  CHECK(bad.undefined_rows == 1);
  CHECK(bad.mass.count == good.mass.count - 1);
  CHECK(bad.top_k[1].count == good.top_k[1].count - 1);
  CHECK(bad.output_error.count == good.output_error.count - 1);
  CHECK(bad.mass.mean == Approx(good.mass.mean).epsilon(0.01));
  const Json json =
      ToJson(mnn::h2o::ReportFields().Object({spoilt->snapshot, spoilt->trace, request, b, false}));
  for (const Json& decile : json["runs"][0]["deciles"]) CHECK(decile["mass_mean"].is_number());
}

TEST_CASE("what is no probability is refused wherever it stands", "[h2o]") {
  for (const float bad : {-0.25f, std::nanf(""), INFINITY, 1.5f}) {
    for (const uint64_t row : {3, 100}) {  // row 3 is in the prompt, row 100 in decode
      INFO(bad << " row " << row);
      auto made = MakeAttentionCase({}, 14);
      RecordProbabilities(*made);
      std::byte* p = const_cast<std::byte*>(made->trace.layers[2].probabilities[0].view.data);
      StoreLE(p + 4 * ((160 + row) * 160 + 1), bad);
      ReplayRequest request = SmallRequest();
      request.policies = {"window"};
      request.measure_quality = false;
      try {
        RunOn(*made, request);
        FAIL("passed");
      } catch (const Error& error) {
        CHECK(error.finding() == Finding::kTraceMismatch);
        CHECK(std::string(error.what()).find(fmt::format("layer 2 head 1 row {}", row)) !=
              std::string::npos);
      }
    }
  }
}

TEST_CASE("two words about where the prompt ends must agree", "[h2o]") {
  auto made = MakeAttentionCase({}, 15);
  made->trace.prompt_tokens = 64;
  ReplayRequest request = SmallRequest();
  CHECK(PromptTokens(made->trace, request) == 64);
  request.prompt_tokens = 65;
  CHECK_THROWS_AS(PromptTokens(made->trace, request), Error);
}

TEST_CASE("missing queries of the prompt are said", "[h2o]") {
  auto made = MakeAttentionCase({}, 16);
  made->trace.q_start = 40;
  made->trace.rows = 120;
  for (TraceLayer& rows : made->trace.layers) rows.queries->shape[0] = 120;
  const ReplayResult result = RunOn(*made, SmallRequest());
  CAPTURE(result.warnings);
  CHECK(Warns(result, "positions 0 to 39"));
}

}  // namespace kv::eviction::quality_test
