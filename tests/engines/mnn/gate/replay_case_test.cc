// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/replay_case.h"

#include <catch2/catch.hpp>

#include "formats/registry.h"
#include "formats/trace/trace.h"
#include "lib/engines/mnn/offline/offline.h"
#include "lib/study/gate/judge.h"
#include "lib/study/gate/summary.h"
#include "tests/support/engines.h"
#include "tests/support/lossless_case.h"

namespace kv::mnn::replay_case_test {
namespace {

using namespace gate;

// A real cache of 192 tokens with the queries of its own forward pass.
struct RealCase {
  AttentionTrace trace = OpenTrace(KVTOOL_TESTDATA "/trace/s260k", {});
  Snapshot snapshot = OpenSnapshot(Source::Open(KVTOOL_TESTDATA "/trace/s260k.seq0.bin"), {});
  ThreadPool pool{2};

  RealCase() { ApplyGeometry(FindGeometry(trace).value(), snapshot); }
  Subject subject() { return {snapshot, &trace, true, pool, nullptr}; }
};

CaseSpec SmallSpec(const std::string& mode) {
  CaseSpec spec = Engine().NewCase();
  spec.name = "small_" + mode;
  spec.mode = mode;
  spec.prompt_tokens = {64};
  spec.params = {{"h2o_layer_start", 1.0},
                 {"h2o_block_tokens", 8.0},
                 {"h2o_sink_tokens", 4.0},
                 {"h2o_recent_tokens", 16.0},
                 {"h2o_trigger_min_tokens", 64.0},
                 {"h2o_target_mode", std::string("adaptive")},
                 {"h2o_target_lossy_ratio", 2.5},
                 {"h2o_lossless_block_tokens", 16.0},
                 {"h2o_lossless_hot_sink_tokens", 4.0},
                 {"h2o_lossless_hot_recent_tokens", 16.0},
                 {"h2o_lossless_store_bootstrap_tokens", 8.0},
                 {"h2o_lossless_store_grouped_step_tokens", 16.0}};
  return spec;
}

double Figure(const CaseResult& result, std::string_view name) {
  INFO(name);
  REQUIRE(result.measured.Value(name));
  return *result.measured.Value(name);
}

Status Judged(CaseResult result, const Rule& rule) {
  result.spec.rules = {rule};
  GateResult gate = test::NewGate();
  gate.cases.push_back(std::move(result));
  Judge({}, gate);
  return gate.cases.front().status;
}

TEST_CASE("A config's parameters are those of the engine, all of them") {
  std::vector<std::string> known;
  for (const ParamInfo& info : Engine().params) known.emplace_back(info.name);
  const auto has = [&](std::string_view name) {
    INFO(name);
    CHECK(FindParam(Engine().params, name) != nullptr);
  };
  runtime::ForEachParameter(
      {}, [&](std::string_view name, const runtime::ParameterValue&) { has(name); });
  mnn::h2o::ForEachParameter({}, [&](std::string_view name, double) { has(name); });
  // The only other parameter is the switch of H2O itself.
  for (const std::string& name : known) {
    eviction::BlockConfig h2o;
    runtime::Config lossless;
    const bool taken =
        mnn::h2o::SetParameter(name, 1, h2o) ||
        runtime::SetParameter(name, 1.0, lossless) != runtime::SetResult::kNoSuchName;
    INFO(name);
    CHECK(taken == (name != "h2o_enable"));
  }
}

TEST_CASE("A replayed case measures the original's figures and the true ones beside them") {
  RealCase real;
  const CaseResult result = ReplayCase(SmallSpec("full"), real.subject());
  CHECK(result.origin == Origin::kReplay);
  CHECK(Figure(result, "lossy_best") > 1.5);
  CHECK(Figure(result, "lossy_worst") == Figure(result, "lossy_best"));
  CHECK(Figure(result, "measured_ratio") > 1);
  CHECK(Figure(result, "content.mismatches") == 0);
  CHECK(Figure(result, "content.compared_ranges") > 0);
  CHECK(Figure(result, "attention_error.mean") > 0);
  CHECK(Figure(result, "attention_error.worst") >= Figure(result, "attention_error.p95"));
  CHECK(Figure(result, "resident_bytes.peak") >= Figure(result, "resident_bytes.final"));
  CHECK(Figure(result, "kv_content_consistency_pass") == 1);
  const auto entries = ListDumpEntries(real.snapshot);
  CHECK(Figure(result, "lossless_selected_value") ==
        mnn::offline::Simulate(entries, mnn::offline::OnlineSimOptions(), real.pool).ratio());
  // A figure that only an engine or a clock can measure has a reason instead.
  for (const char* name : {"decode_gate_tps", "decode_drop_ratio", "kv_invalid_log_count",
                           "runtime_decomp_best_us", "attention_tps"}) {
    INFO(name);
    const Measurement* found = result.measured.Find(name);
    REQUIRE(found != nullptr);
    CHECK_FALSE(found->value);
    CHECK_FALSE(found->reason.empty());
  }
  REQUIRE(result.layers.size() == real.snapshot.layers.size());
  CHECK(result.layers[0].attention_error == 0.0);  // before h2o_layer_start
  CHECK(result.resident_over_time.back().token == 191);
  CHECK(std::get<double>(*Find(result.spec.params, "h2o_recent_tokens")) == 16);

  // The reported place of the worst error is one that the trace has.
  const Where& where = result.measured.Find("attention_error.worst")->where;
  REQUIRE(where.layer);
  CHECK(*where.layer >= 1);
  CHECK(where.head < real.trace.query_heads);
  CHECK(*where.token_end <= 192);
}

TEST_CASE("Several prompt lengths are rows: the original takes the best, the gate the worst") {
  RealCase real;
  CaseSpec spec = SmallSpec("full");
  spec.prompt_tokens = {64, 120, 184};
  const CaseResult result = ReplayCase(spec, real.subject());
  REQUIRE(result.rows.size() == 3);
  double best = 0, worst = 1e9, whole = 1e9;
  for (const RowFigures& row : result.rows) {
    best = std::max(best, row.lossy_ratio);
    worst = std::min(worst, row.lossy_ratio);
    whole = std::min(whole, row.whole_model_ratio);
    CHECK(row.prompt_tokens + row.decode_tokens == 192);
  }
  CHECK(Figure(result, "lossy_best") == best);
  CHECK(Figure(result, "lossy_worst") == worst);
  CHECK(best > worst);
  CHECK(Figure(result, "whole_model_ratio") == whole);
}

TEST_CASE("The measured ratio is that of the worst row", "[figures]") {
  RealCase real;
  CaseSpec spec = SmallSpec("full");
  spec.prompt_tokens = {64, 120, 150};
  const CaseResult result = ReplayCase(spec, real.subject());
  double worst = 1e9, sum = 0;
  for (const RowFigures& row : result.rows) {
    REQUIRE(row.measured_ratio);
    worst = std::min(worst, *row.measured_ratio);
    sum += *row.measured_ratio;
  }
  CHECK(Figure(result, "measured_ratio") == worst);
  CHECK(Figure(result, "measured_ratio_mean") == Approx(sum / 3));
  // A row that compressed nothing counts as the worst.
  spec.prompt_tokens = {64, 190};
  Assign("h2o_lossless_scope", std::string("h2o_kept"), spec.params);
  Assign("h2o_lossless_hot_recent_tokens", 64.0, spec.params);
  const CaseResult partly = ReplayCase(spec, real.subject());
  REQUIRE_FALSE(partly.rows[0].measured_ratio);
  REQUIRE(partly.rows[1].measured_ratio);
  CHECK(Figure(partly, "measured_ratio") == 1);
  CHECK(partly.measured.Find("measured_ratio")->reason.find("prompt of 64 tokens: nothing was") ==
        0);
}

TEST_CASE("A case without H2O and without compression loses nothing and says why") {
  RealCase real;
  CaseSpec spec = test::Engine().FindSuiteCase("runtime_baseline").value();
  spec.prompt_tokens = {96};
  const CaseResult result = ReplayCase(spec, real.subject());
  CHECK(Figure(result, "lossy_best") == 1);
  CHECK(Figure(result, "attention_error.worst") == 0);
  CHECK(Figure(result, "evictions") == 0);
  CHECK(result.measured.Find("measured_ratio")->reason == "the lossless path is off");
  CHECK(Judged(result, {"lossy_best", Op::kAtLeast, 1}) == Status::kPass);

  // The suite's parameters for a cache that is too short for them.
  CaseSpec shorter = test::Engine().FindSuiteCase("runtime_full").value();
  shorter.prompt_tokens = {96};
  const CaseResult nothing = ReplayCase(shorter, real.subject());
  CHECK(nothing.measured.Find("lossy_best")->reason.find("h2o_trigger_min_tokens 384") !=
        std::string::npos);
  CHECK(
      nothing.measured.Find("measured_ratio")->reason.find("h2o_lossless_hot_recent_tokens 256") !=
      std::string::npos);
  CHECK(Figure(nothing, "kv_content_consistency_pass") == 0);
  CHECK(Judged(nothing, {"measured_ratio", Op::kAtLeast, 1}) == Status::kNotRun);
}

TEST_CASE("Equal summaries for any number of threads") {
  RealCase real;
  std::string first;
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    GateResult gate = test::NewGate();
    for (const char* mode : {"probe", "full", "store"}) {
      for (const char* engine : {"mnn", "design"}) {
        CaseSpec spec = SmallSpec(mode);
        spec.runtime = engine;
        spec.rules = Engine().rules_of(mode);
        RequireContent(Engine(), spec);
        gate.cases.push_back(ReplayCase(spec, {real.snapshot, &real.trace, true, pool, nullptr}));
      }
    }
    Judge({}, gate);
    const std::string text = test::SummaryJson(gate, "", {}).dump();
    if (first.empty()) first = text;
    CHECK(text == first);
  }
}

TEST_CASE("Encoders that throw and blobs that rot fail the gate, whatever the ratio is") {
  RealCase real;
  for (const char* engine : {"mnn", "design"}) {
    for (const char* mode : {"probe", "full", "store"}) {
      for (const bool rot : {false, true}) {
        INFO(engine << " " << mode << (rot ? " rot" : " throw"));
        test::FaultyCodec codec;
        if (rot) {
          codec.after_encode = [](uint64_t, Bytes& blob) { test::Damage(blob); };
        } else {
          codec.before_encode = [](uint64_t) { throw std::runtime_error("no encoder"); };
        }
        CaseSpec spec = SmallSpec(mode);
        spec.runtime = engine;
        const CaseResult result = ReplayCase(spec, real.subject(), nullptr, &codec);
        CHECK(Figure(result, "runtime_failures") > 0);
        CHECK(Judged(result, {"runtime_failures", Op::kAtMost, 0}) == Status::kFail);
        // The damaged copy leaves the shared cache unchanged.
        CHECK(Figure(result, "content.mismatches") == 0);
      }
    }
  }
}

TEST_CASE("A trace that is missing leaves attention unknown, not perfect") {
  RealCase real;
  Subject subject = real.subject();
  subject.trace = nullptr;
  const CaseResult result = ReplayCase(SmallSpec("full"), subject);
  CHECK(Figure(result, "lossy_best") > 1);
  CHECK(result.measured.Find("attention_error.mean")->reason == "no attention trace: give 'trace'");
  CHECK(Judged(result, {"attention_error.mean", Op::kAtMost, 1}) == Status::kNotRun);
  CHECK(Judged(result, {"attention_error.mean", Op::kAtMost, 1, true}) == Status::kFail);
}

}  // namespace
}  // namespace kv::mnn::replay_case_test
