// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/summary_view.h"

namespace kv::mnn {

// The suites of MNN's tests: replays of its lossless runtime, and whole runs of its program
// llm_demo over real prompts, which no replay stands in for.
inline constexpr std::string_view kRuntimeSuite = "runtime", kDemoSuite = "llm_demo";

// The figures of MNN's own gate under its keys, with its definitions. "Best" is the maximum over
// the rows, of latencies and fallbacks too.
std::span<const gate::MetricInfo> GateMetrics();

// The row that MNN's suite writes of a case, with our figures (null: not measured), and its schema.
Value RowOf(const gate::CaseResult& result, const gate::OutputNames& outputs);
Value RowSchema();
// A row that MNN's suite wrote. It keeps no rules; those that its figures show are made anew.
gate::CaseView ReadRow(const gate::Json& row);
// Schemas of the true figures that only logs have.
Value::Object LogFigureSchemas();

}  // namespace kv::mnn
