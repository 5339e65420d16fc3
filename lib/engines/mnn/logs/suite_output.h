// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/engines/mnn/logs/evidence.h"

namespace kv::mnn::logs {

// What the suite itself wrote about one of its cases in summary.json, cases.jsonl and summary.md.
struct CaseOutput {
  std::optional<int64_t> return_code = {};  // the first that is not 0, else 0 if any is there
  bool code_unreadable = false;             // a code is there, but is no number
  std::string code_place = {};              // the document that has the code
  Json row = {};                            // as the first document has it
  std::string row_place = {};               // that document
  Evidence evidence = {};
};

struct SuiteOutput {
  std::map<std::string, CaseOutput, std::less<>> cases = {};
  // Evidence on the whole suite, which concerns every case.
  Evidence evidence = {};
  std::vector<std::string> notes = {};
};
SuiteOutput ReadSuiteOutput(const LogFolder& folder);
// True for a summary.json, of the suite or of kvtool.
bool IsSuiteSummary(std::string_view text);
// Reads the suite's summary.json alone. Throws kMissingRecord for one of kvtool.
SuiteOutput ReadSuiteSummary(const std::string& text, const std::string& shown);

}  // namespace kv::mnn::logs
