// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <limits>

#include "lib/core/base/error.h"
#include "lib/study/gate/judge.h"
#include "lib/study/gate/summary.h"
#include "tests/support/engines.h"

namespace kv::gate::verdict_test {
namespace {

Status ExitStatusFor(const Rule& rule, const Measurements& measured, const Noise* noise = nullptr) {
  return Evaluate(rule, measured, noise).status;
}

CaseResult Case(const std::string& name, std::vector<Rule> rules, Measurements measured) {
  CaseResult result;
  result.spec = test::Engine().FindSuiteCase(name).value_or(test::Engine().NewCase());
  result.spec.name = name;
  if (result.spec.mode.empty()) result.spec.mode = "full";
  result.spec.rules = std::move(rules);
  result.spec.own_rules = true;
  result.origin = Origin::kReplay;
  result.measured = std::move(measured);
  return result;
}

TEST_CASE("A rule passes, fails or is not run, and its margin is negative outside the limit") {
  Measurements measured;
  measured.Set("lossy_best", 2.5, {.layer = 3, .token_begin = 0, .token_end = 96});
  measured.Set("runtime_fallback_best", 0);
  measured.Set("kv_content_consistency_pass", 1);
  measured.Missing("decode_gate_tps", "needs an engine");
  measured.Set("measured_ratio", std::numeric_limits<double>::quiet_NaN());

  const RuleOutcome below = Evaluate({"lossy_best", Op::kAtLeast, 3}, measured);
  CHECK(below.status == Status::kFail);
  CHECK(below.margin == -0.5);
  CHECK(below.where.layer == 3u);
  CHECK(Text(below) == "lossy_best 2.5 < 3");
  CHECK(Text(below.where) == "layer 3, tokens 0:96");
  const RuleOutcome above = Evaluate({"lossy_best", Op::kAtLeast, 2}, measured);
  CHECK(above.status == Status::kPass);
  CHECK(Text(above) == "lossy_best 2.5 >= 2");
  CHECK(ExitStatusFor({"lossy_best", Op::kAtLeast, 2.5}, measured) == Status::kPass);
  CHECK(ExitStatusFor({"lossy_best", Op::kAbove, 2.5}, measured) == Status::kFail);
  CHECK(ExitStatusFor({"lossy_best", Op::kBelow, 2.5}, measured) == Status::kFail);
  CHECK(ExitStatusFor({"lossy_best", Op::kEqual, 2.5}, measured) == Status::kPass);
  CHECK(ExitStatusFor({"lossy_best", Op::kDiffers, 2.5}, measured) == Status::kFail);
  CHECK(ExitStatusFor({"runtime_fallback_best", Op::kAtMost, 0}, measured) == Status::kPass);

  const RuleOutcome flag =
      Evaluate({"kv_content_consistency_pass", Op::kEqual, 0, false, false, true}, measured);
  CHECK(flag.status == Status::kFail);
  CHECK_FALSE(flag.margin);
  CHECK(Text(flag) == "kv_content_consistency_pass true != false");

  const RuleOutcome unknown = Evaluate({"decode_gate_tps", Op::kAbove, 0}, measured);
  CHECK(unknown.status == Status::kNotRun);
  CHECK(unknown.reason == "needs an engine");
  CHECK_FALSE(unknown.value);
  const RuleOutcome required = Evaluate({"decode_gate_tps", Op::kAbove, 0, true}, measured);
  CHECK(required.status == Status::kFail);
  CHECK(required.reason == "required, but not known: needs an engine");
  // The figure was measured, but it is NaN.
  const RuleOutcome undefined = Evaluate({"measured_ratio", Op::kBelow, 9}, measured);
  CHECK(undefined.status == Status::kFail);
  CHECK_FALSE(undefined.value);
  CHECK(undefined.reason == "not a finite number");
  CHECK(ExitStatusFor({"evictions", Op::kBelow, 9}, measured) == Status::kNotRun);
}

TEST_CASE("A limit within the range of a figure is not decided") {
  Measurements measured;
  measured.Set("runtime_queue_peak_best", 28);
  measured.SetRange("runtime_queue_peak_best", {1, 28, "between 1 and 28"});
  const auto status = [&](Op op, double limit) {
    return ExitStatusFor({"runtime_queue_peak_best", op, limit}, measured);
  };
  CHECK(status(Op::kAtMost, 28) == Status::kPass);
  CHECK(status(Op::kAtMost, 8) == Status::kInconclusive);
  CHECK(status(Op::kAtMost, 1) == Status::kInconclusive);
  CHECK(status(Op::kAtMost, 0) == Status::kFail);
  CHECK(status(Op::kAtLeast, 1) == Status::kPass);
  CHECK(status(Op::kAbove, 28) == Status::kFail);
  CHECK(status(Op::kBelow, 28) == Status::kInconclusive);
  CHECK(status(Op::kEqual, 8) == Status::kInconclusive);
  CHECK(status(Op::kEqual, 28) == Status::kInconclusive);
  CHECK(status(Op::kEqual, 29) == Status::kFail);
  CHECK(status(Op::kDiffers, 8) == Status::kInconclusive);
  CHECK(status(Op::kDiffers, 0) == Status::kPass);
  CHECK(Evaluate({"runtime_queue_peak_best", Op::kAtMost, 8}, measured).reason ==
        "between 1 and 28");
}

TEST_CASE("Times of a replay decide only by rules that a config asks for") {
  Measurements measured;
  measured.Set("runtime_decomp_best_us", 90000);
  measured.Set("lossy_best", 4);
  for (const bool own : {false, true}) {
    GateResult gate = test::NewGate();
    gate.cases = {
        Case("runtime_store",
             {{"runtime_decomp_best_us", Op::kAtMost, 70000}, {"lossy_best", Op::kAtLeast, 3}},
             measured)};
    gate.cases[0].spec.own_rules = own;
    Judge({}, gate);
    CHECK(gate.cases[0].rules[0].status == (own ? Status::kFail : Status::kNotRun));
    CHECK(gate.cases[0].rules[0].value == 90000);
    CHECK(gate.passed() == !own);
  }
}

TEST_CASE("A speed is judged only beyond the noise of equal baselines") {
  const Rule rule{"attention_drop_ratio", Op::kAtMost, 0.05};
  Measurements measured;
  measured.Set("attention_drop_ratio", 0.08);
  const Noise quiet{{100, 101, 102}, {92, 92, 93}, 1}, loud{{90, 100, 110}, {92, 92, 92}, 1},
      restless{{100, 100, 100}, {85, 92, 99}, 1}, single{{100}, {92}, 1},
      brief{{100, 101, 102}, {92, 92, 93}, 0.01};
  CHECK(quiet.relative() == Approx(2.0 / 101));
  CHECK_FALSE(single.relative());
  CHECK(ExitStatusFor(rule, measured, &quiet) == Status::kFail);
  // The figure is beyond the limit, but within the noise of equal runs.
  for (const Noise* noise : {&loud, &restless}) {
    const RuleOutcome open = Evaluate(rule, measured, noise);
    CHECK(open.status == Status::kInconclusive);
    CHECK(open.reason.find("'repeat' of the case asks for more") != std::string::npos);
    CHECK(Text(open) == "attention_drop_ratio 0.08 > 0.05");
  }
  // Implied rules, which no config requested, are not run.
  Rule implied = rule;
  implied.implied = true;
  CHECK(ExitStatusFor(implied, measured, &loud) == Status::kNotRun);
  CHECK(ExitStatusFor(rule, measured, &brief) == Status::kNotRun);
  CHECK(ExitStatusFor(rule, measured, &single) == Status::kNotRun);
  CHECK(ExitStatusFor(rule, measured) == Status::kNotRun);
  measured.Set("attention_drop_ratio", 0.04);
  CHECK(ExitStatusFor(rule, measured, &loud) == Status::kNotRun);
  measured.Set("attention_drop_ratio", -0.3);
  CHECK(ExitStatusFor(rule, measured, &loud) == Status::kPass);
}

TEST_CASE("A gate passes by a case that passed, and never by what was not run") {
  Measurements good;
  good.Set("lossy_best", 3.5);
  const Rule rule{"lossy_best", Op::kAtLeast, 3};

  GateResult result = test::NewGate();
  CaseSpec optional = test::Engine().FindSuiteCase("llm_demo_full").value();
  optional.on_not_run = OnNotRun::kWarn;
  result.cases = {Case("runtime_full", {rule}, good), NotRun(optional, "no engine logs")};
  Judge({}, result);
  CHECK(result.passed());
  CHECK(result.warnings ==
        std::vector<std::string>{"case 'llm_demo_full' was not run: no engine logs"});
  CHECK(result.cases[0].status == Status::kPass);
  CHECK(result.cases[1].status == Status::kNotRun);
  for (const RuleOutcome& outcome : result.cases[1].rules)
    CHECK(outcome.reason == "no engine logs");
  const Json row = ToJson(MakeRow(result, result.cases[1], {}));
  CHECK(row["overall_pass"] == false);
  CHECK(row["candidate_decode_tps_avg"].is_null());
  CHECK(row["failure_reason"] == "not run: no engine logs");

  GateResult nothing = test::NewGate();
  nothing.cases = {NotRun(test::Engine().FindSuiteCase("llm_demo_full").value(), "no engine logs"),
                   Case("runtime_full", {{"decode_drop_ratio", Op::kAtMost, 1}}, good)};
  Judge({}, nothing);
  CHECK_FALSE(nothing.passed());
  CHECK(nothing.reason().find("no case was decided") == 0);

  GateResult failed = test::NewGate();
  failed.cases = {Case("runtime_full", {rule, {"lossy_best", Op::kAtLeast, 4}}, good)};
  Judge({}, failed);
  CHECK_FALSE(failed.passed());
  CHECK(failed.cases[0].reason == "lossy_best 3.5 < 4");

  GateResult required = test::NewGate();
  CaseResult demo = NotRun(test::Engine().FindSuiteCase("llm_demo_full").value(), "no engine logs");
  demo.spec.rules.front().required = true;
  required.cases = {demo, Case("runtime_full", {rule}, good)};
  Judge({}, required);
  CHECK_FALSE(required.passed());
}

TEST_CASE("A case that was not decided fails the gate unless it only warns") {
  Measurements good;
  good.Set("lossy_best", 3.5);
  good.Set("content.mismatches", 0);
  const CaseResult passing = Case("runtime_full", {{"lossy_best", Op::kAtLeast, 3}}, good);
  const Rule unknown{"decode_drop_ratio", Op::kAtMost, 1};
  const Rule implied{"content.mismatches", Op::kAtMost, 0, false, true};
  const auto judged = [&](std::vector<Rule> rules, OnNotRun on_not_run, bool strict = false) {
    GateResult gate = test::NewGate();
    gate.cases = {passing, Case("other", std::move(rules), good)};
    gate.cases[1].spec.on_not_run = on_not_run;
    Judge({.strict = strict}, gate);
    return gate;
  };
  for (const std::vector<Rule>& rules : {std::vector{unknown}, {implied}, {unknown, implied}, {}}) {
    const GateResult fails = judged(rules, OnNotRun::kFail);
    CHECK(fails.cases[1].status == Status::kNotRun);
    CHECK(fails.failed());
    CHECK(fails.reason().find("case 'other' was not run: ") == 0);
    CHECK(test::SummaryJson(fails, "", {})["verdict"] == "fail");
    const GateResult warns = judged(rules, OnNotRun::kWarn);
    CHECK(warns.passed());
    CHECK(warns.warnings.size() == 1);
    CHECK(judged(rules, OnNotRun::kWarn, true).failed());
  }
  CHECK(judged({implied}, OnNotRun::kFail).cases[1].reason ==
        "only rules that every case has were decided: content.mismatches");
  // One undecided rule among decided ones matters only with --strict.
  const std::vector<Rule> both = {unknown, {"lossy_best", Op::kAtLeast, 3}};
  CHECK(judged(both, OnNotRun::kFail).passed());
  const GateResult strict = judged(both, OnNotRun::kFail, true);
  CHECK(strict.cases[1].status == Status::kFail);
  CHECK(strict.cases[1].rules[0].reason == "--strict: not run: not measured in this case");
  // Rules that every case has decide nothing alone: if no other rule is decided, the gate fails,
  // even with on_not_run kWarn.
  GateResult alone = test::NewGate();
  alone.cases = {Case("other", {implied}, good)};
  alone.cases[0].spec.on_not_run = OnNotRun::kWarn;
  Judge({}, alone);
  CHECK(alone.failed());
}

TEST_CASE("What is inconclusive never passes") {
  Measurements measured;
  measured.Set("lossy_best", 3.5);
  measured.Set("attention_drop_ratio", 0.08);
  for (const bool warn : {false, true}) {
    GateResult gate = test::NewGate();
    gate.cases = {Case(
        "noisy", {{"lossy_best", Op::kAtLeast, 3}, {"attention_drop_ratio", Op::kAtMost, 0.05}},
        measured)};
    gate.cases[0].noise = {{90, 100, 110}, {92, 92, 92}, 1};
    if (warn) gate.cases[0].spec.on_not_run = OnNotRun::kWarn;
    Judge({}, gate);
    CHECK(gate.cases[0].status == Status::kInconclusive);
    CHECK(gate.failed() == !warn);
    CHECK_FALSE(gate.passed());
    const Json json = test::SummaryJson(gate, "", {});
    CHECK(json["verdict"] == (warn ? "inconclusive" : "fail"));
    CHECK(json["overall_pass"] == false);
    CHECK(json["inconclusive_cases"] == 1);
    CHECK(json["rows"][0]["overall_pass"] == false);
    CHECK(json["rows"][0]["quality_status"] == "INCONCLUSIVE");
  }
}

TEST_CASE("Expected cases must be there and decided") {
  Measurements good;
  good.Set("lossy_best", 3.5);
  const auto judged = [&](ExpectedCases expected) {
    GateResult gate = test::NewGate();
    CaseSpec optional = test::Engine().FindSuiteCase("llm_demo_full").value();
    optional.on_not_run = OnNotRun::kWarn;
    gate.cases = {Case("a", {{"lossy_best", Op::kAtLeast, 3}}, good),
                  NotRun(optional, "no engine logs")};
    Judge({.expected = std::move(expected)}, gate);
    return gate.reason();
  };
  CHECK(judged({{"a"}}).empty());
  CHECK(judged({{}, 1}).empty());
  CHECK(judged({{"a", "gone"}}) == "expected_cases: there is no case 'gone' in this run");
  CHECK(judged({{"llm_demo_full"}}) ==
        "expected_cases: case 'llm_demo_full' was not decided: no engine logs");
  CHECK(judged({{}, 2}) == "expected_cases: 2 cases must be decided, 1 were");
}

TEST_CASE("An older summary adds rules on how far figures may move") {
  Measurements old_figures;
  old_figures.Set("lossy_worst", 3.0);
  old_figures.Set("whole_model_ratio", 2.0);
  old_figures.Set("attention_error.mean", 0.10);
  old_figures.Set("content.mismatches", 0);
  GateResult old_gate = test::NewGate();
  old_gate.cases = {Case("runtime_full", {{"lossy_worst", Op::kAtLeast, 1}}, old_figures),
                    Case("gone", {{"lossy_worst", Op::kAtLeast, 1}}, old_figures)};
  Judge({}, old_gate);
  Json document = {{"schema", "kvtool.gate/1"}};
  document.update(test::SummaryJson(old_gate, "2026-01-01T00:00:00Z", {}));
  const Baseline baseline = ParseBaseline(document.dump(), "old.json", test::Engine());
  CHECK(baseline.verdict == "pass");
  CHECK(baseline.cases.at("runtime_full").figures.at("attention_error.mean") == 0.10);

  Measurements figures;
  figures.Set("lossy_worst", 2.99);
  figures.Set("whole_model_ratio", 1.9);
  figures.Set("attention_error.mean", 0.104);
  GateResult gate = test::NewGate();
  gate.baseline = baseline;
  gate.cases = {Case("runtime_full", {}, figures),
                Case("new", {{"lossy_worst", Op::kAbove, 0}}, figures)};
  Judge({DefaultBaselineRules(test::Engine())}, gate);
  CHECK_FALSE(gate.passed());
  CHECK(gate.baseline->missing_cases == std::vector<std::string>{"gone"});
  CHECK(gate.reason() == "baseline old.json: case 'gone' is not in this run");
  REQUIRE(gate.cases[0].rules.size() == 3);
  CHECK(gate.cases[0].rules[0].status == Status::kPass);
  const RuleOutcome& dropped = gate.cases[0].rules[1];
  CHECK(dropped.status == Status::kFail);
  CHECK(dropped.rule.limit == Approx(1.98));
  CHECK(dropped.baseline == 2.0);
  CHECK(gate.cases[0].rules[2].status == Status::kPass);
  CHECK(gate.cases[1].rules.size() == 1);
}

TEST_CASE("Noise of a figure's own repetitions excuses little, and no limit that is named") {
  const auto judged = [](double now, std::vector<Rule> rules) {
    Measurements figures;
    figures.Set("decode_gate_tps", now);
    figures.SetNoise("decode_gate_tps", 50, "its repetitions differ");
    GateResult gate = test::NewGate();
    gate.cases = {Case("a", std::move(rules), figures)};
    gate.cases[0].origin = Origin::kLogs;  // only logs have such a speed, not replays
    gate.baseline.emplace();
    gate.baseline->passed = true;
    gate.baseline->cases["a"].figures["decode_gate_tps"] = 100;
    Judge({.baseline_rules = {{"decode_gate_tps", 0.05, {}}}}, gate);
    return gate.cases[0].status;
  };
  CHECK(judged(95, {}) == Status::kPass);
  CHECK(judged(86, {}) == Status::kInconclusive);
  CHECK(judged(84, {}) == Status::kFail);
  CHECK(judged(100, {{"decode_gate_tps", Op::kAtLeast, 101}}) == Status::kFail);
}

TEST_CASE("A baseline must be able to say something about this run") {
  Measurements figures;
  figures.Set("lossy_worst", 3.0);
  figures.Set("whole_model_ratio", 2.0);
  figures.Set("attention_error.mean", 0.1);
  figures.Set("attention_tps", 50);
  const std::vector<Rule> rules = {{"lossy_worst", Op::kAtLeast, 1},
                                   {"attention_error.mean", Op::kAtMost, 1},
                                   {"attention_tps", Op::kAbove, 1}};
  const auto run = [&](const Measurements& measured, const std::string& hash) {
    GateResult gate = test::NewGate();
    gate.cases = {Case("a", rules, measured)};
    gate.cases[0].snapshot_hash = hash;
    return gate;
  };
  const auto document = [&](GateResult gate) {
    Judge({}, gate);
    Json json = {{"schema", "kvtool.gate/1"}};
    json.update(test::SummaryJson(gate, "", {}));
    return json;
  };
  const Json good = document(run(figures, "0123456789abcdef"));
  const auto against = [&](const Json& old, GateResult gate, bool lenient) {
    gate.baseline = ParseBaseline(old.dump(), "old.json", test::Engine());
    Judge({.baseline_rules = DefaultBaselineRules(test::Engine()), .lenient_baseline = lenient},
          gate);
    return gate;
  };
  // Fails with this reason; with leniency the same text is a warning.
  const auto fails = [&](const Json& old, const GateResult& gate, const std::string& why) {
    const GateResult strict = against(old, gate, false), lenient = against(old, gate, true);
    CHECK(strict.failed());
    CHECK(strict.reason() == "baseline old.json: " + why);
    CHECK(lenient.passed());
    CHECK(lenient.baseline->problems == std::vector<std::string>{why});
    CHECK(test::SummaryJson(lenient, "", {})["baseline"]["problems"][0] == why);
  };
  const GateResult same = run(figures, "0123456789abcdef");
  CHECK(against(good, same, false).passed());
  fails(good, run(figures, "0123456789abcdee"),
        "case 'a' was of another snapshot: xxh3 0123456789abcdef, now 0123456789abcdee");
  Json unnamed = good;
  unnamed["cases"][0]["snapshot_xxh3"] = nullptr;
  fails(unnamed, same, "case 'a' does not name its snapshot");
  // Older versions list the hash among a summary's inputs.
  unnamed["cases"][0]["snapshot"] = "s.bin";
  unnamed["inputs"] = {{{"file", "s.bin"}, {"bytes", 1}, {"xxh3", "0123456789abcdef"}}};
  CHECK(against(unnamed, same, false).passed());
  unnamed["inputs"][0]["xxh3"] = "ffffffffffffffff";
  CHECK(against(unnamed, same, false).failed());

  for (const char* change :
       {R"([{"op": "replace", "path": "/verdict", "value": "fail"}])",
        R"([{"op": "replace", "path": "/verdict", "value": "inconclusive"}])",
        R"([{"op": "replace", "path": "/cases/0/status", "value": "fail"}])",
        R"([{"op": "replace", "path": "/cases/0/rules/0/status", "value": "fail"}])"}) {
    fails(good.patch(Json::parse(change)), same, "its own run did not pass");
  }
  Json empty = good;
  empty["cases"] = Json::array();
  empty["rows"] = Json::array();
  fails(empty, same, "it has no cases");
  Json more = good;
  more["cases"].push_back(more["cases"][0]);
  more["cases"][1]["name"] = "b";
  fails(more, same, "case 'b' is not in this run");

  // A figure that is no longer measured fails, whether a baseline rule or another rule watches it;
  // a time does not.
  Measurements fewer;
  fewer.Set("lossy_worst", 3.0);
  fewer.Missing("whole_model_ratio", "no memory");
  fewer.Missing("attention_error.mean", "no trace");
  fewer.Missing("attention_tps", "no clock");
  const GateResult lost = against(good, run(fewer, "0123456789abcdef"), false);
  CHECK(lost.cases[0].status == Status::kFail);
  std::vector<std::string> failed;
  for (const RuleOutcome& rule : lost.cases[0].rules) {
    if (rule.status != Status::kFail) continue;
    failed.push_back(rule.rule.metric);
    CHECK(rule.reason.find("no longer measured: no ") == 0);
    CHECK(rule.baseline);
  }
  CHECK(failed == std::vector<std::string>{"attention_error.mean", "whole_model_ratio",
                                           "attention_error.mean"});
  const GateResult lenient = against(good, run(fewer, "0123456789abcdef"), true);
  CHECK(lenient.passed());
  CHECK(lenient.baseline->problems ==
        std::vector<std::string>{
            "case 'a': whole_model_ratio was 2, no longer measured: no memory",
            "case 'a': attention_error.mean was 0.1, no longer measured: no trace"});

  // A case that passed before and is not run now fails, even if undecided cases only warn.
  GateResult idle = test::NewGate();
  idle.cases = {NotRun(same.cases[0].spec, "no engine"), Case("b", {rules[0]}, figures)};
  idle.cases[0].spec.on_not_run = OnNotRun::kWarn;
  CHECK(against(good, idle, false).reason() ==
        "baseline old.json: case 'a' passed in it, but was not run now; baseline old.json: nothing "
        "was compared with it: no rule on baselines names a figure that both have");
}

TEST_CASE("Small steps pass the last baseline and add up against the pinned one") {
  Json pinned;
  Json last;
  std::vector<std::string> verdicts;
  double ratio = 2.0;
  for (int commit = 0; commit < 4; ++commit, ratio *= 0.995) {
    Measurements figures;
    figures.Set("measured_ratio", ratio);
    GateResult gate = test::NewGate();
    gate.commit = "commit-" + std::to_string(commit);
    gate.cases = {Case("a", {{"measured_ratio", Op::kAtLeast, 1}}, figures)};
    if (!last.is_null()) {
      gate.baseline = ParseBaseline(last.dump(), "last.json", test::Engine());
      gate.pinned = ParseBaseline(pinned.dump(), "pinned.json", test::Engine());
    }
    JudgeOptions options{.baseline_rules = {{"measured_ratio", 0.01, {}}},
                         .pinned_rules = {{"measured_ratio", 0.01, {}}},
                         .pinned_commit = "commit-0"};
    Judge(options, gate);
    for (const RuleOutcome& rule : gate.cases[0].rules) {
      CHECK((rule.status == Status::kFail) == (commit == 3 && rule.pinned));
    }
    verdicts.emplace_back(gate.verdict());
    last = {{"schema", "kvtool.gate/1"}};
    last.update(test::SummaryJson(gate, "", {}));
    CHECK(last["commit"] == gate.commit);
    if (commit == 0) pinned = last;
    if (commit < 3) continue;
    CHECK(last["cases"][0]["rules"][2]["against"] == "pinned");
    CHECK(last["pinned"]["commit"] == "commit-0");
    CHECK_THAT(SummaryMarkdown(gate, {}), Catch::Contains("was 2 in the pinned baseline"));
    options.pinned_commit = "commit-9";
    gate.cases[0].rules.clear();
    Judge(options, gate);
    CHECK_THAT(gate.reason(), Catch::Contains("pinned baseline pinned.json: it is of commit "
                                              "commit-0, but pinned_commit is commit-9"));
  }
  CHECK(verdicts == std::vector<std::string>{"pass", "pass", "pass", "fail"});
}

TEST_CASE("A baseline of another trace says nothing about this one") {
  Measurements figures;
  figures.Set("attention_error.mean", 0.1);
  const auto run = [&](const std::string& trace) {
    GateResult gate = test::NewGate();
    gate.cases = {Case("a", {{"attention_error.mean", Op::kAtMost, 1}}, figures)};
    gate.cases[0].snapshot_hash = "0123456789abcdef";
    gate.cases[0].trace_hash = trace;
    return gate;
  };
  const auto against = [&](const Json& old, const std::string& trace, bool new_recordings = false) {
    GateResult gate = run(trace);
    gate.baseline = ParseBaseline(old.dump(), "old.json", test::Engine());
    Judge({.new_recordings = new_recordings}, gate);
    return gate;
  };
  const auto document = [&](const std::string& trace) {
    GateResult gate = run(trace);
    Judge({}, gate);
    Json json = {{"schema", "kvtool.gate/1"}};
    json.update(test::SummaryJson(gate, "", {}));
    return json;
  };
  Json old = document("aaaaaaaaaaaaaaaa");
  CHECK(against(old, "aaaaaaaaaaaaaaaa").passed());
  CHECK(against(old, "bbbbbbbbbbbbbbbb").reason() ==
        "baseline old.json: case 'a' was of another trace: xxh3 aaaaaaaaaaaaaaaa, now "
        "bbbbbbbbbbbbbbbb");
  CHECK(against(old, "").reason() == "baseline old.json: case 'a' had a trace, and has none now");
  CHECK(against(document(""), "bbbbbbbbbbbbbbbb").reason() ==
        "baseline old.json: case 'a' had no trace, and has one now");
  CHECK(against(old, "bbbbbbbbbbbbbbbb", true).passed());
  // Summaries of older versions lack the hash.
  old["cases"][0].erase("trace_xxh3");
  const GateResult unknown = against(old, "bbbbbbbbbbbbbbbb");
  CHECK(unknown.passed());
  REQUIRE(unknown.warnings.size() == 1);
  CHECK_THAT(unknown.warnings[0], Catch::Contains("does not say of which trace it was"));
}

TEST_CASE("The original's summary serves as a baseline") {
  const Baseline baseline = ParseBaseline(
      R"({"overall_pass": true, "rows": [{"case": "runtime_store", "lossy_best": 3.1,
          "lossless_selected_value": 1.4, "quality_status": "PASS", "unheard_of": 7}]})",
      "summary.json", test::Engine());
  CHECK(baseline.cases.at("runtime_store").figures.size() == 2);
  CHECK(baseline.cases.at("runtime_store").figures.at("lossless_selected_value") == 1.4);
  for (const char* text : {"{", "[]", "{}", R"({"rows": 3})", R"({"rows": [{}]})",
                           R"({"rows": [3]})", R"({"schema": "kvtool.h2o/1", "rows": []})",
                           R"({"schema": "kvtool.gate/1", "rows": []})"}) {
    INFO(text);
    CHECK_THROWS_AS(ParseBaseline(text, "old.json", test::Engine()), Error);
  }
}

TEST_CASE("The summary has the original's keys with nulls for what nobody measured") {
  Measurements measured;
  measured.Set("lossy_best", 2.0, {.layer = 4, .token_begin = 0, .token_end = 128});
  measured.Set("content.mismatches", 0);
  measured.Missing("decode_gate_tps", "tokens/s need an engine");
  GateResult gate = test::NewGate();
  gate.cases = {Case("runtime_full",
                     {{"lossy_best", Op::kAtLeast, 3},
                      {"decode_gate_tps", Op::kAbove, 1},
                      {"content.mismatches", Op::kAtMost, 0}},
                     measured)};
  gate.cases[0].noise.baseline_tps = {10, 11};
  Judge({}, gate);
  gate.cases[0].rules[0].reproduce = "kvtool gate g.json --case runtime_full";
  const Json json = test::SummaryJson(gate, "", {"s.json", "s.md", "c.jsonl"});
  CHECK(json["generated_at"].is_null());
  CHECK(json["overall_pass"] == false);
  CHECK(json["verdict"] == "fail");
  CHECK(json["total_cases"] == 1);
  const Json& row = json["rows"][0];
  CHECK(row["lossy_best"] == 2);
  CHECK(row["decode_gate_tps"].is_null());
  CHECK(row["quality_status"] == "FAIL");
  CHECK(row["failure_reason"] == "lossy_best 2 < 3 at layer 4, tokens 0:128");
  const Json& item = json["cases"][0];
  CHECK(item["engine"]["lossy_best"] == 2);
  CHECK(item["true_figures"]["content"]["mismatches"] == 0);
  CHECK(item["not_measured"]["decode_gate_tps"] == "tokens/s need an engine");
  CHECK(item["rules"][0]["where"]["layer"] == 4);
  CHECK(item["rules"][0]["margin"] == -1.0);
  CHECK(item["rules"][1]["status"] == "not_run");
  CHECK(json["baseline_noise"]["runs"] == 2);
  CHECK(json["baseline"].is_null());

  const std::string text = SummaryMarkdown(gate, {"s.json", "s.md", "c.jsonl"});
  INFO(text);
  CHECK(text.find("# H2O final Summary\n\n- overall_pass: false\n- total_cases: 1\n") == 0);
  CHECK(text.find("- **runtime_full**: lossy_best 2 \\< 3, at layer 4, tokens 0:128\n"
                  "  `kvtool gate g.json --case runtime_full`") != text.npos);
  CHECK(text.find("1. case=runtime_full, mode=full, pass=false, rc=0, decode=n/a/n/a(avg)") !=
        text.npos);
  CHECK(text.find("- summary_json: `s.json`\n- cases_jsonl: `c.jsonl`\n") != text.npos);
}

}  // namespace
}  // namespace kv::gate::verdict_test
