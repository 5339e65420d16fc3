// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/judge.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/study/gate/engine.h"
#include "lib/study/gate/judge_baseline.h"

namespace kv::gate {
namespace {

bool Has(const CaseResult& result, Status status) {
  return std::any_of(result.rules.begin(), result.rules.end(),
                     [&](const RuleOutcome& rule) { return rule.status == status; });
}

// What nobody could decide is not good enough.
void Tighten(CaseResult& result) {
  for (RuleOutcome& rule : result.rules) {
    if (rule.status != Status::kNotRun && rule.status != Status::kInconclusive) continue;
    rule.reason =
        fmt::format("--strict: {}: {}", rule.status == Status::kNotRun ? "not run" : "inconclusive",
                    rule.reason.empty() ? "not measured" : rule.reason);
    rule.status = Status::kFail;
  }
}

// Passed by nothing but rules that no config asked for: that proves little, and not what was meant.
bool RestsOnImplied(const CaseResult& result) {
  const auto asked = [](const RuleOutcome& rule) {
    return rule.status == Status::kPass && !rule.rule.implied;
  };
  return std::none_of(result.rules.begin(), result.rules.end(), asked);
}

std::string WhyNotRun(const CaseResult& result) {
  if (result.rules.empty()) return "the case has no rules";
  std::string implied;
  const RuleOutcome* open = nullptr;
  for (const RuleOutcome& rule : result.rules) {
    if (rule.status == Status::kPass) implied += (implied.empty() ? "" : ", ") + rule.rule.shown();
    if (rule.status == Status::kNotRun && open == nullptr) open = &rule;
  }
  std::string text = open == nullptr ? "" : open->reason;
  if (implied.empty()) return text;
  return fmt::format("only rules that every case has were decided: {}{}{}", implied,
                     text.empty() ? "" : "; ", text);
}

// A difference that equal runs of the engine show as well breaks no rule.
void MindNoise(const CaseResult& result, RuleOutcome& rule) {
  const Measurement* measured = result.measured.Find(rule.rule.metric);
  if (measured == nullptr || !measured->noise || rule.status != Status::kFail || !rule.value)
    return;
  const double width = *measured->noise;
  if (!Holds(*rule.value - width, rule.rule.op, rule.rule.limit)) return;
  rule.status = Status::kInconclusive;
  rule.reason = fmt::format(
      "the baselines differ by {:.1f}% without any change; more repeats of the baseline and of the "
      "case would decide",
      100 * width);
}

void Conclude(CaseResult& result) {
  // Engine logs may fail a case by what is no rule: a return code, a missing report.
  const std::string stated = result.reason;
  const bool failed_before = result.status == Status::kFail;
  result.status = failed_before || Has(result, Status::kFail) ? Status::kFail
                  : Has(result, Status::kInconclusive)        ? Status::kInconclusive
                  : RestsOnImplied(result)                    ? Status::kNotRun
                                                              : Status::kPass;
  const Status decided_by = result.status;
  const RuleOutcome* rule = result.first(decided_by);
  if (decided_by == Status::kNotRun) {
    if (result.reason.empty()) result.reason = WhyNotRun(result);
  } else if (decided_by != Status::kPass && rule != nullptr) {
    result.reason = Text(*rule);
    if (rule->where.known()) result.reason += " at " + Text(rule->where);
    if (!rule->reason.empty()) result.reason += ": " + rule->reason;
    if (result.logs && !stated.empty()) result.reason = stated;
  }
}

// What no number is fails whatever the rules are, unless one of them speaks of it.
void RequireFinite(CaseResult& result) {
  const std::string metric = "content.not_finite";
  if (result.measured.Value(metric).value_or(0) == 0) return;
  const bool is_named = std::any_of(result.spec.rules.begin(), result.spec.rules.end(),
                                    [&](const Rule& rule) { return rule.metric == metric; });
  if (is_named) return;
  result.rules.push_back(Evaluate({metric, Op::kAtMost, 0, false, true}, result.measured));
}

// The clock of a replay is this machine's, with whatever else runs on it: a suite's thresholds on
// the times of an engine say nothing about it, and a rule that a config gives is asked for.
void LeaveTimesOpen(const GateResult& gate, const CaseResult& result, RuleOutcome& rule) {
  if (result.origin != Origin::kReplay || result.spec.own_rules || !rule.value) return;
  const MetricInfo* info = FindMetric(gate.engines, rule.rule.metric);
  if (info == nullptr || info->needs != Needs::kClock) return;
  rule.status = Status::kNotRun;
  rule.reason = "a time of this machine, not of the engine: a config's own rule judges it";
}

void JudgeCase(const GateResult& gate, const JudgeOptions& options, CaseResult& result) {
  for (const Rule& rule : result.spec.rules) {
    if (result.origin != Origin::kNone) {
      result.rules.push_back(Evaluate(rule, result.measured, &result.noise));
      MindNoise(result, result.rules.back());
      LeaveTimesOpen(gate, result, result.rules.back());
      continue;
    }
    RuleOutcome outcome;
    outcome.rule = rule;
    outcome.reason = result.reason;
    if (rule.required) outcome.status = Status::kFail;
    result.rules.push_back(std::move(outcome));
  }
  RequireFinite(result);
  if (result.origin != Origin::kNone) AddBaselineRules(options, gate, result);
  if (options.strict) Tighten(result);
  Conclude(result);
}

void RequireDecided(bool strict, GateResult& gate) {
  for (const CaseResult& item : gate.cases) {
    if (item.status == Status::kPass || item.status == Status::kFail) continue;
    std::string text = fmt::format(
        "case '{}' {}: {}", Escaped(item.spec.name),
        item.status == Status::kNotRun ? "was not run" : "is inconclusive", item.reason);
    const bool fails = strict || item.spec.on_not_run == OnNotRun::kFail;
    (fails ? gate.reasons : gate.warnings).push_back(std::move(text));
  }
}

void RequireExpected(const ExpectedCases& expected, GateResult& gate) {
  const auto is_decided = [](const CaseResult& item) {
    return item.status == Status::kPass || item.status == Status::kFail;
  };
  for (const std::string& name : expected.names) {
    const auto found = std::find_if(gate.cases.begin(), gate.cases.end(),
                                    [&](const CaseResult& item) { return item.spec.name == name; });
    if (found == gate.cases.end()) {
      gate.reasons.push_back(
          fmt::format("expected_cases: there is no case '{}' in this run", Escaped(name)));
    } else if (!is_decided(*found) && found->spec.on_not_run == OnNotRun::kWarn) {
      gate.reasons.push_back(fmt::format("expected_cases: case '{}' was not decided: {}",
                                         Escaped(name), found->reason));
    }
  }
  const auto decided =
      static_cast<uint64_t>(std::count_if(gate.cases.begin(), gate.cases.end(), is_decided));
  if (expected.count && decided < *expected.count) {
    gate.reasons.push_back(
        fmt::format("expected_cases: {} were to be decided, {} were", *expected.count, decided));
  }
}

}  // namespace

void Judge(const JudgeOptions& options, GateResult& result) {
  for (CaseResult& item : result.cases) JudgeCase(result, options, item);
  JudgeBaselines(options, result);
  RequireDecided(options.strict, result);
  if (!options.partial) RequireExpected(options.expected, result);
  if (result.count(Status::kNotRun) == result.cases.size()) {
    result.reasons.insert(result.reasons.begin(),
                          "no case was decided: nothing that a rule asks for was measured");
  }
}

}  // namespace kv::gate
