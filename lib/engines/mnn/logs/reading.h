// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/case.h"

namespace kv::mnn::logs {

// Everything that lies at the path of engine logs, sorted by case and not yet judged.
struct LogsRead {
  std::string shown;  // the path as reports print it
  std::vector<CaseLogs> cases;
  std::vector<std::string> absent_cases;  // the suite's cases that are not there
  std::vector<std::string> notes;
};

// Throws what AnalyzeEngineLogs throws.
LogsRead ReadEngineLogs(const EngineLogsInput& input);
// Whether a case is a run of llm_demo, by its name.
bool IsDemoName(std::string_view name);

}  // namespace kv::mnn::logs
