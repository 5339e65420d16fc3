// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by logs.cc, bench.cc

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/result.h"

namespace kv::llamacpp {

// Reads what llama.cpp's programs print: speeds, the size and types of the cache, and what
// llama-perplexity says of the loss. FORMAT.md has the lines and fields. A case has figures that
// the gate's rules can name, its types as parameters, and no suite.

// Limit on the cases of a bench, and of all logs of a folder together; a config has the same limit.
inline constexpr size_t kMostCases = 1000;

struct LogsRead {
  std::vector<gate::CaseResult> cases;
  std::vector<std::string> left_out;  // other files of a folder, without figures
};
// Reads a log, or the logs of a folder in the order of their names. Returns no cases if they are
// not llama.cpp's. Throws kOpenFailed, kReadFailed, kLimit, kBadText, kBadField.
LogsRead ReadLogs(const std::filesystem::path& path);

// Returns true for the case of a log that ends before its figures, so that a rule cannot be judged.
bool IsCut(const gate::CaseResult& item);
// Makes the case of a log that ends early. `why` says what the log lacks.
gate::CaseResult CutCase(const std::string& name, const std::string& why);
// Makes a case that fails whatever the rules are.
gate::CaseResult BrokenCase(const std::string& name, const std::string& why);

// Reads the text of one log; `name` names its cases. Throws what ReadLogs throws.
std::vector<gate::CaseResult> ReadLog(std::string_view text, const std::string& name);

// Reads `llama-bench -o json` or `-o jsonl`: one case per test and combination of settings.
std::vector<gate::CaseResult> ReadBench(std::string_view text, const std::string& name);
bool IsBench(std::string_view text);

// Reads a log of llama-server, llama-cli or llama-perplexity: one case, or none.
std::vector<gate::CaseResult> ReadTextLog(std::string_view text, const std::string& name);

// Returns the limits on the change of these figures against a baseline, in addition to those
// of every engine's logs. A config may override them.
std::span<const gate::DeltaRule> BaselineRules();

}  // namespace kv::llamacpp
