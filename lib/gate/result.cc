// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/result.h"

#include <algorithm>

namespace kv::gate {
namespace {

void JudgeCase(const GateResult& gate, const std::vector<DeltaRule>& delta_rules,
               CaseResult& result) {
  // Engine logs may fail a case by what is no rule: a return code, a missing report.
  const std::string stated = result.reason;
  const bool failed_before = result.status == Status::kFail;
  if (result.origin == Origin::kNone) {
    for (const Rule& rule : result.spec.rules) {
      RuleOutcome outcome;
      outcome.rule = rule;
      outcome.reason = result.reason;
      if (rule.required) outcome.status = Status::kFail;
      result.rules.push_back(std::move(outcome));
    }
  } else {
    for (const Rule& rule : result.spec.rules) {
      result.rules.push_back(Evaluate(rule, result.measured, &result.noise));
    }
    if (gate.baseline) {
      auto deltas =
          CompareWithBaseline(*gate.baseline, result.spec.name, delta_rules, result.measured);
      std::move(deltas.begin(), deltas.end(), std::back_inserter(result.rules));
    }
  }
  const auto any = [&](Status status) {
    return std::any_of(result.rules.begin(), result.rules.end(),
                       [&](const RuleOutcome& r) { return r.status == status; });
  };
  result.status = failed_before || any(Status::kFail) ? Status::kFail
                  : any(Status::kPass)                ? Status::kPass
                                                      : Status::kNotRun;
  if (const RuleOutcome* failure = result.first_failure()) {
    result.reason = Text(*failure);
    if (failure->where.known()) result.reason += " at " + Text(failure->where);
    if (!failure->reason.empty()) result.reason += ": " + failure->reason;
    if (result.logs && !stated.empty()) result.reason = stated;
  } else if (result.status == Status::kNotRun && result.reason.empty()) {
    result.reason = result.rules.empty() ? "the case has no rules" : result.rules.front().reason;
  }
}

}  // namespace

std::string_view Name(Origin origin) {
  return origin == Origin::kReplay       ? "replay"
         : origin == Origin::kEngineLogs ? "engine_logs"
                                         : "none";
}

const RuleOutcome* CaseResult::first_failure() const {
  const auto found = std::find_if(rules.begin(), rules.end(), [](const RuleOutcome& rule) {
    return rule.status == Status::kFail;
  });
  return found == rules.end() ? nullptr : &*found;
}

uint64_t GateResult::count(Status status) const {
  return static_cast<uint64_t>(
      std::count_if(cases.begin(), cases.end(),
                    [&](const CaseResult& result) { return result.status == status; }));
}

const Noise* GateResult::worst_noise() const {
  const Noise* worst = nullptr;
  for (const CaseResult& item : cases) {
    const std::optional<double> relative = item.noise.relative();
    if (relative && (worst == nullptr || *relative > *worst->relative())) worst = &item.noise;
  }
  return worst;
}

CaseResult NotRun(CaseSpec spec, std::string reason) {
  CaseResult result;
  result.spec = std::move(spec);
  result.reason = std::move(reason);
  return result;
}

void Judge(const std::vector<DeltaRule>& delta_rules, GateResult& result) {
  for (CaseResult& item : result.cases) JudgeCase(result, delta_rules, item);
  if (result.baseline) {
    for (const auto& [name, figures] : result.baseline->cases) {
      const auto same = [&, &wanted = name](const CaseResult& c) { return c.spec.name == wanted; };
      if (std::none_of(result.cases.begin(), result.cases.end(), same)) {
        result.missing_cases.push_back(name);
      }
    }
  }
  if (result.count(Status::kPass) == 0 && result.count(Status::kFail) == 0) {
    result.reason = "no case was decided: nothing that a rule asks for was measured";
  }
}

}  // namespace kv::gate
