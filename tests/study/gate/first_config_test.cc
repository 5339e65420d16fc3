// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/study/gate/config.h"
#include "lib/study/gate/judge.h"
#include "tests/support/engines.h"

namespace kv::gate::first_config_test {
namespace {

constexpr DataSize kSize{.layers = 4, .prompt_tokens = 64, .tokens = 192, .has_attention = true};

Measurements Figures(double ratio, double error) {
  Measurements figures;
  figures.Set("measured_ratio", ratio, {.layer = 3, .kind = "K"});
  figures.Set("attention_error.evicting_mean", error);
  figures.Set("evictions", 5);
  figures.Set("lossy_worst", 2);
  figures.Set("content.compared_ranges", 7);
  figures.Set("content.mismatches", 0);
  figures.Set("content.not_finite", 0);
  figures.Set("runtime_failures", 0);
  return figures;
}

MeasuredCase Measured(const std::vector<double>& ratios) {
  MeasuredCase measured{mnn::SizedCases(kSize).back(), {}};
  measured.sized.spec.name = "run-evicted";
  for (const double ratio : ratios) {
    CaseResult result;
    result.spec = measured.sized.spec;
    result.origin = Origin::kReplay;
    result.measured = Figures(ratio, 0.1);
    measured.samples.push_back(std::move(result));
  }
  return measured;
}

const SizedRule& RuleOn(const std::vector<SizedRule>& rules, std::string_view metric) {
  for (const SizedRule& rule : rules) {
    if (rule.rule.metric == metric) return rule;
  }
  FAIL("no rule on " << metric);
  return rules.front();
}

std::vector<SizedRule> RulesOf(const std::vector<MeasuredCase>& recordings) {
  std::vector<const MeasuredCase*> pointers;
  for (const MeasuredCase& one : recordings) pointers.push_back(&one);
  return SizeRules(pointers);
}

TEST_CASE("A margin is as wide as the noise that was measured, within what makes sense") {
  // No noise: the least margin, rounded to four digits.
  std::vector<SizedRule> rules = RulesOf({Measured({1.23456, 1.23456, 1.23456})});
  CHECK(RuleOn(rules, "measured_ratio").rule.limit == 1.222);
  CHECK_THAT(RuleOn(rules, "measured_ratio").remark,
             Catch::Equals("measured 1.235, decided by layer 3 K; over 3 samples of its tokens: "
                           "1.235 to 1.235, noise 0%; margin 1% (the smallest allowed)"));
  // A noise of 0.02 gives a margin of 0.06.
  rules = RulesOf({Measured({2.0, 2.02, 1.98})});
  CHECK(RuleOn(rules, "measured_ratio").rule.limit == Approx(1.94));
  // With one recording margins are limited; with several they are not, because those show the noise
  // itself.
  rules = RulesOf({Measured({2.0, 3.0, 1.0})});
  CHECK(RuleOn(rules, "measured_ratio").rule.limit == Approx(1.8));
  CHECK_THAT(RuleOn(rules, "measured_ratio").remark,
             Catch::Contains("the largest allowed without a second recording"));
  rules = RulesOf({Measured({2.0}), Measured({1.8})});
  CHECK(RuleOn(rules, "measured_ratio").rule.limit == Approx(1.375).margin(0.001));
  CHECK_THAT(RuleOn(rules, "measured_ratio").remark, Catch::Contains("2 recordings: 1.8 to 2"));
  // Limits are rounded outwards, never inwards, whichever side is worse.
  CHECK(RuleOn(rules, "attention_error.evicting_mean").rule.limit == 0.105);
  CHECK(RuleOn(rules, "lossy_worst").rule.shown() == "eviction_ratio");
  CHECK(RuleOn(rules, "content.mismatches").rule.limit == 0);
}

TEST_CASE("What was not measured gets no rule, and what was broken before stays allowed") {
  MeasuredCase measured = Measured({2.0});
  Measurements& figures = measured.samples[0].measured;
  figures.Missing("measured_ratio", "the lossless path is off");
  figures.Set("evictions", 0);
  figures.Set("content.not_finite", 3);
  const std::vector<SizedRule> rules = RulesOf({measured});
  for (const SizedRule& rule : rules) {
    CHECK(rule.rule.metric != "measured_ratio");
    CHECK(rule.rule.metric != "lossy_worst");
    CHECK(rule.rule.metric != "evictions");
    CHECK(rule.rule.required);
  }
  CHECK(RuleOn(rules, "content.not_finite").rule.limit == 3);
}

TEST_CASE("A first config is read as it was meant, and passes on what it was measured on") {
  MeasuredRun run;
  run.name = run.snapshot = "a \"run\"";
  run.has_attention = true;
  run.reading.kv_heads = 4;
  run.cases = {Measured({2.0, 2.01, 1.99})};
  const std::string text = FirstConfig({&run, 1}, test::Engine(), "Written by a test.");
  CHECK(text.find("// Written by a test.\n") == 0);
  const Config config = ParseConfig(text, "ci", test::Engine());
  REQUIRE(config.cases.size() == 1);
  const CaseSpec& spec = config.cases[0];
  CHECK(spec.snapshot == "ci/a \"run\"");
  CHECK(spec.reading.kv_heads == 4);
  CHECK(spec.runtime == "design");
  CHECK(spec.prompt_tokens == std::vector<uint64_t>{64});
  CHECK(spec.params == run.cases[0].sized.spec.params);
  CHECK(config.expected.names == std::vector<std::string>{"run-evicted"});

  const auto verdict = [&](const Measurements& figures) {
    GateResult gate = test::NewGate();
    CaseResult result;
    result.spec = spec;
    result.origin = Origin::kReplay;
    result.measured = figures;
    gate.cases = {result};
    Judge({.expected = config.expected}, gate);
    return gate.verdict();
  };
  CHECK(verdict(Figures(2.0, 0.1)) == "pass");
  CHECK(verdict(Figures(1.9, 0.1)) == "fail");
  CHECK(verdict(Figures(2.0, 0.11)) == "fail");
  Measurements fewer = Figures(2.0, 0.1);
  fewer.Missing("attention_error.evicting_mean", "no trace");
  CHECK(verdict(fewer) == "fail");
}

TEST_CASE("Cases fit data of any size, and samples stay within it") {
  for (uint64_t tokens = 32; tokens < 70000; tokens = tokens * 3 / 2 + 1) {
    for (const uint64_t prompt : {uint64_t{1}, tokens / 2, tokens - 1}) {
      const DataSize size{2, prompt, tokens, true};
      for (const uint64_t sample : SamplePrompts(size)) {
        CHECK(sample >= prompt);
        CHECK(sample < tokens);
      }
      for (const SizedCase& sized : mnn::SizedCases(size)) {
        const Params& params = sized.spec.params;
        const double floor = NumberOr(params, "h2o_sink_tokens", 0) +
                             NumberOr(params, "h2o_recent_tokens", 0) +
                             NumberOr(params, "h2o_block_tokens", 0);
        CHECK(floor <= static_cast<double>(tokens) / 2);
        const double hot = NumberOr(params, "h2o_lossless_hot_sink_tokens", 0) +
                           NumberOr(params, "h2o_lossless_hot_recent_tokens", 0);
        CHECK(hot <= static_cast<double>(tokens) / 2);
      }
    }
  }
}

}  // namespace
}  // namespace kv::gate::first_config_test
