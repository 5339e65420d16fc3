// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/cases.h"

#include <algorithm>
#include <limits>

namespace kv::gate {
namespace {

Status StatusOf(RuleStatus status) {
  switch (status) {
    case RuleStatus::kPass:
      return Status::kPass;
    case RuleStatus::kFail:
      return Status::kFail;
    case RuleStatus::kNotRun:
      return Status::kNotRun;
    case RuleStatus::kInconclusive:
      return Status::kInconclusive;
  }
  return Status::kNotRun;
}

// What a rule of ours can name, from the original's row.
void Collect(const Json& figures, Measurements& measured) {
  for (const auto& [key, value] : figures.items()) {
    if (FindMetric(key) == nullptr) continue;
    if (value.is_boolean()) {
      measured.Set(key, value.get<bool>() ? 1 : 0);
    } else if (value.is_number()) {
      measured.Set(key, value.get<double>());
    }
  }
}

RuleOutcome OutcomeOf(const EngineRule& rule) {
  RuleOutcome outcome;
  outcome.rule.metric = rule.metric;
  outcome.rule.op = ParseOp(rule.op).value_or(Op::kEqual);
  outcome.rule.limit = rule.limit.value_or(std::numeric_limits<double>::quiet_NaN());
  outcome.rule.implied = rule.evidence;
  outcome.status = StatusOf(rule.status);
  outcome.value = rule.value;
  if (rule.value && rule.limit && !IsFlag(rule.metric)) {
    const bool low = outcome.rule.op == Op::kAtMost || outcome.rule.op == Op::kBelow;
    outcome.margin = low ? *rule.limit - *rule.value : *rule.value - *rule.limit;
  }
  outcome.reason = rule.reason;
  outcome.where.log = rule.log;
  outcome.engine_value = rule.engine_value;
  outcome.engine_pass = rule.engine_pass;
  return outcome;
}

}  // namespace

std::vector<CaseResult> CasesOfLogs(const EngineVerdict& verdict) {
  std::vector<CaseResult> results;
  for (const EngineCase& item : verdict.cases) {
    CaseResult result;
    result.spec.name = item.name;
    result.spec.suite = item.suite == Name(Suite::kLlmDemo) ? Suite::kLlmDemo : Suite::kRuntime;
    result.spec.mode = item.mode;
    result.origin = Origin::kEngineLogs;
    result.status = StatusOf(item.status);
    result.reason = item.reason;
    result.logs = LogFigures{
        item.engine, item.true_figures.is_null() ? Json::object() : Json(item.true_figures)};
    Collect(result.logs->row, result.measured);
    Collect(result.logs->true_figures, result.measured);
    for (const EngineRule& rule : item.rules) result.rules.push_back(OutcomeOf(rule));
    result.warnings = item.notes;
    results.push_back(std::move(result));
  }
  return results;
}

Json LogsJson(const EngineVerdict& verdict) {
  return {{"path", verdict.path},
          {"engine_pass", verdict.engine_pass},
          {"absent_cases", verdict.absent_cases},
          {"baseline_noise", NoiseJson(verdict.baseline_noise)},
          {"notes", verdict.notes}};
}

std::optional<CaseResult> TakeCase(const CaseSpec& spec, std::vector<CaseResult>& of_logs) {
  const auto found = std::find_if(of_logs.begin(), of_logs.end(), [&](const CaseResult& item) {
    return item.spec.name == spec.name;
  });
  if (found == of_logs.end()) return std::nullopt;
  CaseResult result = std::move(*found);
  of_logs.erase(found);
  result.spec.on_not_run = spec.on_not_run;
  if (!spec.own_rules) return result;
  // Thresholds are the config's; what fails a case whatever its figures say is no threshold.
  result.spec.rules = spec.rules;
  std::erase_if(result.spec.rules, [](const Rule& rule) { return rule.implied; });
  std::erase_if(result.rules, [](const RuleOutcome& outcome) { return !outcome.rule.implied; });
  result.status = Status::kNotRun;
  result.reason.clear();
  return result;
}

void AddFromLogs(const CaseSpec& spec, std::string_view path, std::vector<CaseResult>& of_logs,
                 CaseResult& replayed) {
  std::optional<CaseResult> taken = TakeCase(spec, of_logs);
  if (!taken) return;
  for (RuleOutcome& outcome : taken->rules) {
    if (outcome.where.log.empty()) outcome.where.log = path;
    replayed.rules.push_back(std::move(outcome));
  }
}

}  // namespace kv::gate
