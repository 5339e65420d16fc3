// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/config.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "lib/core/base/error.h"
#include "tests/support/engines.h"

namespace kv::gate::config_test {
namespace {

std::string MessageOf(const std::string& text) {
  try {
    ParseConfig(text, "", test::Engine());
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUsage);
    return error.message();
  }
  return "accepted";
}

// Returns a config of one case with these members.
std::string WithCase(const std::string& members) {
  return R"({"schema": "kvtool.gate-config/1", "cases": [{)" + members + "}]}";
}

bool Says(const std::string& message, const std::string& part) {
  INFO(message);
  return message.find(part) != std::string::npos;
}

TEST_CASE("A gate config with comments gives cases with paths beside the config") {
  const Config config = ParseConfig(R"(
    {
      "schema": "kvtool.gate-config/1",
      // what all cases share
      "defaults": {"snapshot": "s.bin", "params": {"h2o_block_tokens": 8}, "prompt_tokens": [64, 96]},
      "cases": [
        {"name": "runtime_store", "mode": "store", "trace": "/t.safetensors",
         "params": {"h2o_target_lossy_ratio": 3.5, "h2o_lossless_store_disable_front": true},
         "rules": [{"metric": "lossy_best", "op": ">=", "limit": 3.0}]},
        {"name": "mine", "mode": "probe", "prompt_tokens": 32, "engine": "design"} /* block */
      ]
    })",
                                    "dir/sub", test::Engine());
  REQUIRE(config.cases.size() == 2);
  const CaseSpec& store = config.cases[0];
  CHECK(store.snapshot == "dir/sub/s.bin");
  CHECK(store.trace == "/t.safetensors");
  CHECK(store.prompt_tokens == std::vector<uint64_t>{64, 96});
  CHECK(NumberOr(store.params, "h2o_block_tokens", 0) == 8);
  CHECK(NumberOr(store.params, "h2o_target_lossy_ratio", 0) == 3.5);
  CHECK(IsOn(store.params, "h2o_lossless_store_disable_front"));
  // The given rules, and the one that cannot be turned off.
  REQUIRE(store.rules.size() == 2);
  CHECK(store.rules[0].metric == "lossy_best");
  CHECK(store.rules[0].limit == 3.0);
  CHECK(store.rules[1].metric == "content.mismatches");
  const CaseSpec& mine = config.cases[1];
  CHECK(mine.runtime == "design");
  CHECK(mine.prompt_tokens == std::vector<uint64_t>{32});
  CHECK(mine.rules.size() == test::Engine().rules_of("probe").size() + 1);
  CHECK_FALSE(config.baseline_rules.empty());
}

TEST_CASE("Without a config the gate is the suite with its thresholds") {
  const Config config = SuiteConfig("s.bin", "t", test::Engine());
  REQUIRE(config.cases.size() == test::Engine().case_names.size());
  for (const CaseSpec& spec : config.cases) {
    INFO(spec.name);
    CHECK(spec.snapshot == "s.bin");
    CHECK(spec.only_engine == (spec.name.substr(0, 3) == "llm"));
    const bool baseline = spec.name == "runtime_baseline";
    for (const Rule& rule : spec.rules) {
      REQUIRE(test::Engine().FindMetric(rule.metric) != nullptr);
      if (rule.metric == "lossy_best") CHECK(rule.limit == (baseline ? 1.0 : 3.0));
      if (rule.metric == "lossless_selected_value") CHECK(rule.limit == (baseline ? 1.0 : 1.3));
      if (rule.metric == "runtime_async_wait_best_us") {
        CHECK(rule.limit == (spec.mode == "store" ? 40000 : 20000));
      }
    }
    CHECK(IsOn(spec.params, "h2o_enable") == !baseline);
  }
}

TEST_CASE("Rules of the defaults hold for cases that have none, but not for the engine's own") {
  const Config config = ParseConfig(R"({"schema": "kvtool.gate-config/1",
      "defaults": {"rules": [{"metric": "measured_ratio", "op": ">", "limit": 1, "required": true}],
                   "params": {"h2o_enable": 1}},
      "cases": [{"name": "runtime_full"}, {"name": "llm_demo_full"}, {"name": "runtime_baseline"}]})",
                                    "", test::Engine());
  REQUIRE(config.cases[0].rules.size() == 2);
  CHECK(config.cases[0].rules[0].required);
  CHECK(config.cases[1].rules.front().metric == "decode_drop_ratio");
  // A case's kind overrides the defaults; this case compresses nothing.
  CHECK_FALSE(IsOn(config.cases[2].params, "h2o_enable"));
  CHECK(config.cases[2].rules.size() == 1);
}

TEST_CASE("A scope is a word or the engine's number of it") {
  const auto scope = [](const std::string& value) {
    const Config config = ParseConfig(
        WithCase(R"("name": "a", "mode": "full", "params": {"h2o_lossless_scope": )" + value + "}"),
        "", test::Engine());
    return std::get<std::string>(*Find(config.cases[0].params, "h2o_lossless_scope"));
  };
  CHECK(scope("0") == "none");
  CHECK(scope("1") == "front_n");
  CHECK(scope("2") == "h2o_kept");
  CHECK(scope("3") == "front_n_and_h2o_kept");
  CHECK(scope("\"h2o_kept\"") == "h2o_kept");
  CHECK_THROWS_AS(scope("4"), Error);
  CHECK_THROWS_AS(scope("1.5"), Error);
}

TEST_CASE("A typo in a gate config is named with its place and the nearest word") {
  CHECK(Says(MessageOf(WithCase(R"("name": "a", "mode": "probe", "snapshto": "x")")),
             "cases[0]: unknown key 'snapshto'; did you mean 'snapshot'?"));
  CHECK(Says(MessageOf(WithCase(R"("name": "a", "mode": "stroe")")),
             "cases[0].mode: 'stroe' is not one of probe, full, store; did you mean 'store'?"));
  CHECK(Says(MessageOf(WithCase(R"("name": "a", "mode": "full", "params": {"h2o_sink_token": 1})")),
             "did you mean 'h2o_sink_tokens'?"));
  CHECK(Says(
      MessageOf(WithCase(
          R"("name": "a", "mode": "full", "rules": [{"metric": "lossy_bets", "op": ">=", "limit": 1}])")),
      "cases[0].rules[0].metric: unknown metric 'lossy_bets'; did you mean 'lossy_best'?"));
  CHECK(Says(MessageOf(WithCase(
                 R"("name": "a", "mode": "full", "params": {"h2o_lossless_scope": "front"})")),
             "did you mean 'front_n'?"));
  CHECK(Says(MessageOf(R"({"schema": "kvtool.gate-config/1", "case": []})"),
             "unknown key 'case'; did you mean 'cases'?"));
}

TEST_CASE("Gate configs that mean nothing are refused") {
  CHECK(Says(MessageOf("{"), "line 1: not valid JSON"));
  CHECK(Says(MessageOf("{\n\"schema\": nil}"), "line 2: not valid JSON"));
  CHECK(Says(MessageOf("[]"), "expected an object"));
  const std::string deep(100000, '[');
  CHECK(Says(MessageOf("{\"schema\": " + deep), "deeper than 64 levels"));
  CHECK(Says(MessageOf("{\"a\": 1, // \"\n\"b\": " + deep), "deeper than 64 levels"));
  std::string wide = "{\"k\": 0";
  for (int i = 0; i < 80000; ++i) wide += fmt::format(", \"k{}\": 0", i);
  CHECK(Says(MessageOf(wide + "}"), "more than 256 keys"));
  CHECK(Says(MessageOf("{}"), "expected \"schema\""));
  CHECK(Says(MessageOf(R"({"schema": "kvtool.gate-config/2", "cases": []})"), "schema: expected"));
  CHECK(Says(MessageOf(R"({"schema": "kvtool.gate-config/1"})"), "expected 'cases'"));
  CHECK(Says(MessageOf(R"({"schema": "kvtool.gate-config/1", "cases": []})"), "decides nothing"));
  CHECK(Says(MessageOf(R"({"schema": "kvtool.gate-config/1", "cases": {}})"), "expected an array"));
  CHECK(Says(MessageOf(WithCase(R"("mode": "full")")), "a case needs 'name'"));
  CHECK(Says(MessageOf(WithCase(R"("name": "a")")), "a case needs 'mode'"));
  CHECK(Says(MessageOf(WithCase(R"("name": "", "mode": "full")")), "1 to 200 bytes"));
  CHECK(
      Says(MessageOf(WithCase(R"("name": "runtime_store", "mode": "full")")), "is of mode store"));
  CHECK(Says(MessageOf(WithCase(R"("name": "a", "mode": "full", "name": "b")")), "given twice"));
  CHECK(Says(MessageOf(WithCase(R"("name": "a", "mode": "full", "prompt_tokens": [])")),
             "at least one"));
  CHECK(Says(MessageOf(WithCase(R"("name": "a", "mode": "full", "prompt_tokens": 1.5)")),
             "a whole number"));
  CHECK(Says(MessageOf(WithCase(R"("name": "a", "mode": "full", "repeat": 0)")), "a whole number"));
  CHECK(
      Says(MessageOf(WithCase(R"("name": "a", "mode": "full", "params": {"h2o_ema_alpha": "x"})")),
           "expected a number"));
  CHECK(Says(
      MessageOf(WithCase(R"("name": "a", "mode": "full", "params": {"h2o_ema_alpha": 1e999})")),
      "not valid JSON"));
  CHECK(Says(MessageOf(WithCase(
                 R"("name": "a", "mode": "full", "params": {"h2o_lossless_async_threads": 257})")),
             "from 0 to 256"));
  CHECK(
      Says(MessageOf(WithCase(
               R"("name": "a", "mode": "full", "params": {"h2o_lossless_runtime_mode": "store"})")),
           "mode is full, but"));
  CHECK(Says(
      MessageOf(WithCase(R"("name": "a", "mode": "full", "rules": [{"metric": "lossy_best"}])")),
      "a rule needs 'op'"));
  CHECK(Says(
      MessageOf(WithCase(
          R"("name": "a", "mode": "full", "rules": [{"metric": "lossy_best", "op": "=>", "limit": 1}])")),
      "expected one of >="));
  CHECK(Says(
      MessageOf(WithCase(
          R"("name": "a", "mode": "full", "rules": [{"metric": "kv_content_consistency_pass", "op": ">=", "limit": true}])")),
      "is true or false"));
  const std::string twice = R"({"name": "a", "mode": "full"})";
  CHECK(Says(
      MessageOf(R"({"schema": "kvtool.gate-config/1", "cases": [)" + twice + "," + twice + "]}"),
      "two cases are named 'a'"));
  CHECK(Says(MessageOf(
                 R"({"schema": "kvtool.gate-config/1", "cases": [{"name": "a", "mode": "full"}],
                     "baseline_rules": [{"metric": "lossy_best"}]})"),
             "expected 'max_drop' or 'max_rise'"));
}

TEST_CASE("A config says what becomes of cases that are not decided, and which must be there") {
  const auto parsed = [](const std::string& members) {
    return ParseConfig(R"({"schema": "kvtool.gate-config/1", )" + members + "}", "",
                       test::Engine());
  };
  const std::string one = R"("cases": [{"name": "a", "mode": "full"}])";
  CHECK(parsed(one).cases[0].on_not_run == OnNotRun::kFail);
  CHECK(parsed(R"("on_not_run": "warn", )" + one).cases[0].on_not_run == OnNotRun::kWarn);
  CHECK(parsed(R"("on_not_run": "warn", "cases": [{"name": "a", "mode": "full",
                   "on_not_run": "fail"}])")
            .cases[0]
            .on_not_run == OnNotRun::kFail);
  const Config named = parsed(R"("expected_cases": ["a", "b"], )" + one);
  CHECK(named.expected.names == std::vector<std::string>{"a", "b"});
  CHECK(parsed(R"("expected_cases": 3, )" + one).expected.count == 3u);
  // Cases that are expected in engine logs are not cases of the config.
  CHECK(parsed(R"("expected_cases": ["runtime_full"])").cases.empty());
  const auto says = [](const std::string& members, const std::string& part) {
    CHECK(Says(MessageOf(R"({"schema": "kvtool.gate-config/1", )" + members + "}"), part));
  };
  says(R"("on_not_run": "pass", )" + one, "on_not_run: 'pass' is not one of fail, warn");
  says(R"("expected_cases": [], )" + one, "at least one name");
  says(R"("expected_cases": 0, )" + one, "a whole number");
  says(R"("expected_cases": [3], )" + one, "expected_cases[0]: expected a string");
}

TEST_CASE("A case may have a reference, and alone it needs nothing else") {
  const auto parsed = [](const std::string& members) {
    return ParseConfig(WithCase(R"("name": "a", "snapshot": "s", )" + members), "dir",
                       test::Engine())
        .cases[0];
  };
  const CaseSpec alone = parsed(R"("reference": "golden.kvz")");
  CHECK(alone.mode == "compare");
  CHECK(alone.reference == "dir/golden.kvz");
  REQUIRE(alone.rules.size() == 2);
  CHECK(alone.rules[0].metric == "reference.structure");
  CHECK(alone.rules[1].metric == "reference.mismatches");
  CHECK(alone.rules[1].required);
  CHECK_FALSE(alone.tolerance.Of(3, true));
  // With a mode the case is also replayed; its rules on the reference replace the usual ones.
  const CaseSpec both = parsed(R"("reference": "g", "mode": "full",
      "rules": [{"metric": "reference.max_abs", "op": "<=", "limit": 0.1}])");
  CHECK(both.mode == "full");
  REQUIRE(both.rules.size() == 3);
  CHECK(both.rules[0].required);
  CHECK(both.rules[2].metric == "reference.structure");

  CHECK(parsed(R"("reference": "g", "tolerance": 0.5)").tolerance.Of(3, true) == 0.5);
  const Tolerance fine = parsed(R"("reference": "g", "tolerance": {"k": 0.1, "v": "bit_equal",
                "layers": {"3": 0.5, "4": {"v": 0.2}}})")
                             .tolerance;
  CHECK(fine.Of(0, false) == 0.1);
  CHECK_FALSE(fine.Of(0, true));
  CHECK(fine.Of(3, true) == 0.5);
  CHECK(fine.Of(4, false) == 0.1);
  CHECK(fine.Of(4, true) == 0.2);
  const auto says = [](const std::string& members, const std::string& part) {
    CHECK(Says(MessageOf(WithCase(R"("name": "a", "reference": "g", )" + members)), part));
  };
  says(R"("tolerance": -1)", "tolerance: expected 0 or more");
  says(R"("tolerance": "same")", "is not one of bit_equal");
  says(R"("tolerance": {"q": 1})", "unknown key 'q'");
  says(R"("tolerance": {"layers": {"x": 1}})", "expected the number of a layer");
}

TEST_CASE("Cases are chosen by name") {
  Config config = SuiteConfig("s", "t", test::Engine());
  KeepCases({"runtime_store", "runtime_probe"}, config);
  REQUIRE(config.cases.size() == 2);
  CHECK(config.cases[0].name == "runtime_probe");
  CHECK_THROWS_AS(KeepCases({"runtime_stroe"}, config), Error);
}

TEST_CASE("Words of no engine's name the same metrics and parameters") {
  const Config config = ParseConfig(
      WithCase(
          R"("name": "a", "mode": "store", "params": {"evict": false, "compress_front_layers": 5},
                  "rules": [{"metric": "eviction_ratio", "op": ">=", "limit": 2}])"),
      "", test::Engine());
  const CaseSpec& spec = config.cases[0];
  CHECK_FALSE(IsOn(spec.params, "h2o_enable"));
  CHECK(NumberOr(spec.params, "h2o_lossless_front_n", 0) == 5);
  CHECK(spec.rules[0].metric == "lossy_worst");
  CHECK(spec.rules[0].shown() == "eviction_ratio");
  // Every word has one meaning, and none is another metric's name.
  for (const MetricInfo* info : test::Engine().Metrics()) {
    CHECK(test::Engine().FindMetric(info->name) == info);
    if (!info->word.empty()) CHECK(test::Engine().FindMetric(info->word) == info);
  }
  for (const ParamInfo& param : test::Engine().params) {
    CHECK(FindParam(test::Engine().params, param.word) == &param);
  }
  CHECK(Says(MessageOf(WithCase(
                 R"("name": "a", "mode": "full", "params": {"evict": 1, "h2o_enable": 0})")),
             "cases[0].params: evict is h2o_enable by another name"));
}

}  // namespace
}  // namespace kv::gate::config_test
