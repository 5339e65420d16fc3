// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/study/gate/config.h"
#include "lib/study/gate/result.h"

namespace kv::gate {

// Where an engine's logs lie, and what its own tools would be told about them.
struct LogsInput {
  std::string path;
  // Options of the engine's analyzer, by its names, and files that it would read besides.
  std::vector<std::pair<std::string, std::string>> options = {}, files = {};
  std::map<std::string, int64_t> return_codes = {};  // by case
};

// Engine logs, read and judged by the engine's reader.
struct LogsRead {
  std::vector<CaseResult> cases;          // with the outcomes of the rules that the logs decide
  std::vector<std::string> absent_cases;  // cases of the engine's suite that the logs do not hold
  Json summary;  // what the logs say of the suite as a whole: the key "engine_logs" of a summary
};

// Takes the case of this name out of the logs' cases. If the config gives rules of its own, these
// replace the thresholds, but not the engine's evidence. Nothing if the logs have no such case.
std::optional<CaseResult> TakeCase(const CaseSpec& spec, std::vector<CaseResult>& of_logs);

// Takes the case out likewise, and adds the outcomes of its rules to those of a case that was
// replayed. `path` is where the logs lie.
void AddFromLogs(const CaseSpec& spec, std::string_view path, std::vector<CaseResult>& of_logs,
                 CaseResult& replayed);

}  // namespace kv::gate
