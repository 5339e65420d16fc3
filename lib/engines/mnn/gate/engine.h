// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by engine.cc, rows.cc

#include "lib/engines/mnn/logs/logs.h"
#include "lib/fields/fields.h"
#include "lib/study/gate/config.h"
#include "lib/study/gate/summary_view.h"

namespace kv::mnn {

// MNN for the gate: its test suite's cases, parameters and figures, and how reports show them.
const gate::Engine& Engine();

// Returns two cases with parameters that fit data of this size: one that compresses everything and
// evicts nothing and, if attention was recorded, one that evicts half and compresses nothing. Both
// follow the design rather than the engine's code, so that they judge the data and not an engine.
std::vector<gate::SizedCase> SizedCases(const gate::DataSize& size);

// Reads and judges the output of MNN's tools, and adds the figures that rules can name. Throws what
// AnalyzeEngineLogs throws.
logs::EngineVerdict ReadLogs(const logs::EngineLogsInput& input);
// Returns the fields of logs apart from their cases: "engine_logs" of a summary.
const Fields<logs::EngineVerdict>& LogsFields();

// The suites of MNN's tests: replays of its lossless runtime, and runs of its program llm_demo over
// real prompts, which a replay cannot replace.
inline constexpr std::string_view kRuntimeSuite = "runtime", kDemoSuite = "llm_demo";

// Returns the figures of MNN's own gate under its keys, with its definitions. "Best" is the maximum
// over the rows, even for latencies and fallbacks.
std::span<const gate::MetricInfo> GateMetrics();

// Returns the row that MNN's suite writes of a case, with kvtool's figures (null: not measured).
Value MakeRow(const gate::CaseResult& result, const gate::OutputNames& outputs);
Value RowSchema();
// Reads a row that MNN's suite wrote, and restores its rules from the figures, because it does not
// record them.
gate::CaseView ReadRow(const gate::Json& row);
// Returns schemas of the true figures that only logs have.
Value::Object LogFigureSchemas();

}  // namespace kv::mnn
