// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/logs.h"

#include <limits>

#include "lib/engines/mnn/gate/cases.h"
#include "lib/engines/mnn/gate/engine.h"
#include "lib/engines/mnn/logs/logs.h"

namespace kv::mnn {
namespace {

using namespace gate;

Status StatusOf(logs::RuleStatus status) {
  switch (status) {
    case logs::RuleStatus::kPass:
      return Status::kPass;
    case logs::RuleStatus::kFail:
      return Status::kFail;
    case logs::RuleStatus::kNotRun:
      return Status::kNotRun;
    case logs::RuleStatus::kInconclusive:
      return Status::kInconclusive;
  }
  return Status::kNotRun;
}

// What a rule of ours can name, from the original's row.
void Collect(const Json& figures, Measurements& measured) {
  const gate::Engine* const engines[] = {&Engine()};
  for (const auto& [key, value] : figures.items()) {
    if (FindMetric(engines, key) == nullptr) continue;
    if (value.is_boolean()) {
      measured.Set(key, value.get<bool>() ? 1 : 0);
    } else if (value.is_number()) {
      measured.Set(key, value.get<double>());
    }
  }
}

RuleOutcome OutcomeOf(const logs::EngineRule& rule) {
  RuleOutcome outcome;
  outcome.rule.metric = rule.metric;
  outcome.rule.op = ParseOp(rule.op).value_or(Op::kEqual);
  outcome.rule.limit = rule.limit.value_or(std::numeric_limits<double>::quiet_NaN());
  outcome.rule.implied = rule.evidence;
  outcome.status = StatusOf(rule.status);
  outcome.value = rule.value;
  if (rule.value && rule.limit) {
    const bool low = outcome.rule.op == Op::kAtMost || outcome.rule.op == Op::kBelow;
    outcome.margin = low ? *rule.limit - *rule.value : *rule.value - *rule.limit;
  }
  outcome.reason = rule.reason;
  outcome.where.log = rule.log;
  outcome.engine_value = rule.engine_value;
  outcome.engine_pass = rule.engine_pass;
  return outcome;
}

std::vector<CaseResult> CasesOf(const logs::EngineVerdict& verdict) {
  std::vector<CaseResult> results;
  for (const logs::EngineCase& item : verdict.cases) {
    CaseResult result;
    result.spec.name = item.name;
    result.spec.suite = item.suite;
    result.spec.engine = &Engine();
    result.spec.only_engine = item.suite == kDemoSuite;
    result.spec.mode = item.mode;
    result.origin = Origin::kLogs;
    result.status = StatusOf(item.status);
    result.reason = item.reason;
    result.logs = LogFigures{
        item.engine, item.true_figures.is_null() ? Json::object() : Json(item.true_figures)};
    Collect(result.logs->row, result.measured);
    Collect(result.logs->true_figures, result.measured);
    if (const auto noise = NumberIn(result.logs->true_figures, "decode_noise")) {
      result.measured.SetNoise("decode_drop_ratio", *noise);
    }
    for (const logs::EngineRule& rule : item.rules) result.rules.push_back(OutcomeOf(rule));
    result.warnings = item.notes;
    results.push_back(std::move(result));
  }
  return results;
}

// What the logs say beyond their cases.
Json SummaryOf(const logs::EngineVerdict& verdict) {
  return {{"path", verdict.path},
          {"engine_pass", verdict.engine_pass},
          {"absent_cases", verdict.absent_cases},
          {"baseline_noise", logs::NoiseJson(verdict.baseline_noise)},
          {"notes", verdict.notes}};
}

}  // namespace

gate::LogsRead ReadLogs(const gate::LogsInput& input) {
  logs::EngineLogsInput of_mnn;
  of_mnn.path = input.path;
  of_mnn.options = input.options;
  of_mnn.return_codes = input.return_codes;
  for (const auto& [name, path] : input.files) {
    if (name == "offline_lossless_json") of_mnn.offline_lossless_json = path;
    if (name == "offline_lossless_online_json") of_mnn.offline_lossless_online_json = path;
    if (name == "bench_stdout_log") of_mnn.bench_stdout_log = path;
  }
  const logs::EngineVerdict verdict = logs::AnalyzeEngineLogs(of_mnn);
  return {CasesOf(verdict), verdict.absent_cases, SummaryOf(verdict)};
}

}  // namespace kv::mnn
