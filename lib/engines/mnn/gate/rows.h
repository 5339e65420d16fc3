// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/summary_view.h"

namespace kv::mnn {

// The suites of MNN's tests: replays of its lossless runtime, and runs of its program llm_demo over
// real prompts, which a replay cannot replace.
inline constexpr std::string_view kRuntimeSuite = "runtime", kDemoSuite = "llm_demo";

// The figures of MNN's own gate under its keys, with its definitions. "Best" is the maximum over
// the rows, even for latencies and fallbacks.
std::span<const gate::MetricInfo> GateMetrics();

// Returns the row that MNN's suite writes of a case, with kvtool's figures (null: not measured).
Value RowOf(const gate::CaseResult& result, const gate::OutputNames& outputs);
Value RowSchema();
// Reads a row that MNN's suite wrote, and restores its rules from the figures, because it does not
// record them.
gate::CaseView ReadRow(const gate::Json& row);
// Returns schemas of the true figures that only logs have.
Value::Object LogFigureSchemas();

}  // namespace kv::mnn
