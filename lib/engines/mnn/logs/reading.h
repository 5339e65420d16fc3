// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/case.h"

namespace kv::mnn::logs {

// Everything that lies at the path of engine logs, by case and not yet judged.
struct LogsRead {
  std::string shown;  // the path as printed
  std::vector<CaseLogs> cases;
  std::vector<std::string> absent_cases;  // of a suite: the known ones that are not there
  std::vector<std::string> notes;
};

// Throws as AnalyzeEngineLogs does.
LogsRead ReadEngineLogs(const EngineLogsInput& input);
bool IsDemoName(std::string_view name);

}  // namespace kv::mnn::logs
