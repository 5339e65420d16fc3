// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/engines/mnn/logs/logs.h"
#include "lib/fields/fields.h"
#include "lib/study/gate/first_config.h"

namespace kv::mnn {

// MNN as the gate knows it: its test suite's cases, parameters and figures, and how reports show
// them.
const gate::Engine& Engine();

// Two cases whose parameters fit data of this size: everything compressed and nothing evicted, and,
// where attention was recorded, half of it evicted and nothing compressed. Both follow the design
// rather than the engine's code, so that they speak of the data and not of an engine.
std::vector<gate::SizedCase> SizedCases(const gate::DataSize& size);

// Reads and judges what MNN's tools wrote, and adds the figures that rules can name. Throws what
// AnalyzeEngineLogs throws.
logs::EngineVerdict ReadLogs(const logs::EngineLogsInput& input);
// What logs say beyond their cases: "engine_logs" of a summary.
const Fields<logs::EngineVerdict>& LogsFields();

}  // namespace kv::mnn
