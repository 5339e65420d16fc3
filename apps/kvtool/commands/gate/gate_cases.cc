// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/gate/gate_cases.h"

#include <algorithm>
#include <iterator>

#include "apps/kvtool/engines.h"
#include "lib/study/gate/compare_case.h"
#include "lib/study/gate/measure_quant.h"

namespace kv {

// Without a config and a snapshot the cases are those of the logs.
std::vector<gate::CaseResult> GateCases::ReadLogs(gate::Config& config,
                                                  gate::GateResult& result) const {
  if (!logs.given()) return {};
  gate::LogsRead read = logs.engine().read_logs(logs.Resolve());
  result.engine_logs = std::move(read.summary);
  std::vector<gate::CaseResult> of_logs = std::move(read.cases);
  if (!config.cases.empty()) return of_logs;
  for (gate::CaseResult& item : of_logs) {
    item.spec.on_not_run = config.on_not_run;
    config.cases.push_back(item.spec);
  }
  // A suite that was run in part passes only for who says so: by expected_cases, on_not_run or
  // --case.
  for (const std::string& name : read.absent_cases) {
    auto spec = gate::FindSuiteCase(Engines(), name);
    if (!spec) continue;
    spec->on_not_run = config.expected.any() ? gate::OnNotRun::kWarn : config.on_not_run;
    config.cases.push_back(std::move(*spec));
  }
  gate::KeepCases(only, config);
  return of_logs;
}

// Logs know what a replay cannot: the engine's own cases, and those without a snapshot.
std::optional<gate::CaseResult> GateCases::FromLogs(const gate::CaseSpec& spec,
                                                    std::vector<gate::CaseResult>& of_logs) const {
  if (!logs.given() || (!spec.only_engine && !spec.snapshot.empty())) {
    return std::nullopt;
  }
  std::optional<gate::CaseResult> taken = gate::TakeCase(spec, of_logs);
  if (taken) return taken;
  return gate::NotRun(spec,
                      "the engine logs have no such case: expected_cases or --case "
                      "name the part of a suite that is meant");
}

gate::CaseResult GateCases::Replay(const Context& context, const gate::CaseSpec& spec,
                                   GateInputs::Pair& pair, ThreadPool& pool,
                                   ProgressLine& progress) const {
  const gate::Subject subject{pair.snapshot,
                              pair.trace ? &*pair.trace : nullptr,
                              context.global.deterministic,
                              pool,
                              &pair.of_snapshot,
                              pair.reference,
                              loses_content};
  gate::CaseResult result = gate::OnlyCompares(spec) ? gate::CompareCase(spec, subject)
                            : spec.mode == gate::kQuant
                                ? gate::QuantCase(spec, subject)
                                : spec.engine->replay(spec, subject, &progress);
  if (spec.quant) gate::MeasureQuant(subject, result);
  result.snapshot_hash = pair.snapshot_hash;
  result.trace_hash = pair.trace_hash;
  return result;
}

void GateCases::Run(Context& context, gate::Config& config, GateInputs& inputs,
                    gate::GateResult& result) const {
  std::vector<gate::CaseResult> of_logs = ReadLogs(config, result);
  ThreadPool pool(context.global.thread_count());
  ProgressLine progress(context.console, context.global.progress_when(), "gate");
  for (const gate::CaseSpec& spec : config.cases) {
    if (std::optional<gate::CaseResult> taken = FromLogs(spec, of_logs)) {
      result.cases.push_back(std::move(*taken));
      continue;
    }
    if (spec.only_engine) {
      result.cases.push_back(gate::NotRun(
          spec, "no replay can stand in for the engine's own run of prompts: --engine-logs"));
      continue;
    }
    result.cases.push_back(Replay(context, spec, inputs.Open(spec, pool), pool, progress));
    gate::AddFromLogs(spec, logs.path, of_logs, result.cases.back());
  }
  // A config of replays names its own cases: what else the logs tell of counts too.
  const bool replays = std::any_of(config.cases.begin(), config.cases.end(),
                                   [](const auto& spec) { return !spec.snapshot.empty(); });
  if (replays && only.empty()) {
    std::move(of_logs.begin(), of_logs.end(), std::back_inserter(result.cases));
  }
  for (const gate::CaseResult& item : result.cases) {
    if (item.logs) continue;
    for (const std::string& warning : item.warnings) {
      context.console.Warn(item.spec.name, warning);
    }
  }
}

}  // namespace kv
