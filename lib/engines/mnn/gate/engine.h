// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/engines/mnn/logs/logs.h"
#include "lib/fields/fields.h"
#include "lib/study/gate/first_config.h"

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
// Returns the fields of logs beside their cases: "engine_logs" of a summary.
const Fields<logs::EngineVerdict>& LogsFields();

}  // namespace kv::mnn
