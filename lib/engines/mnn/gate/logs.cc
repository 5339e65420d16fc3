// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/logs.h"

#include "lib/engines/mnn/gate/cases.h"
#include "lib/engines/mnn/gate/engine.h"
#include "lib/engines/mnn/logs/logs.h"

namespace kv::mnn {
namespace {

using namespace gate;

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

// Makes a case of the logs one of the gate: its engine, and the figures that rules can name.
void Complete(CaseResult& result) {
  result.spec.engine = &Engine();
  result.spec.only_engine = result.spec.suite == kDemoSuite;
  Collect(result.logs->row, result.measured);
  Collect(result.logs->true_figures, result.measured);
  if (const auto noise = NumberIn(result.logs->true_figures, "decode_noise")) {
    result.measured.SetNoise("decode_drop_ratio", *noise);
  }
}

Json NoiseJson(const logs::BaselineNoise& noise) {
  return {{"samples", noise.tokens_per_second.size()},
          {"tokens_per_second", noise.tokens_per_second},
          {"mean", noise.mean()},
          {"relative", NumberJson(noise.relative())}};
}

// What the logs say beyond their cases.
Json SummaryOf(const logs::EngineVerdict& verdict) {
  return {{"path", verdict.path},
          {"engine_pass", verdict.engine_pass},
          {"absent_cases", verdict.absent_cases},
          {"baseline_noise", NoiseJson(verdict.baseline_noise)},
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
  logs::EngineVerdict verdict = logs::AnalyzeEngineLogs(of_mnn);
  for (CaseResult& result : verdict.cases) Complete(result);
  return {std::move(verdict.cases), verdict.absent_cases, SummaryOf(verdict)};
}

}  // namespace kv::mnn
