// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/engines/mnn/logs/evidence.h"

namespace kv::mnn::logs {

// What the suite itself wrote of its cases: summary.json, cases.jsonl and summary.md of its folder.
struct CaseWords {
  std::optional<int64_t> return_code = {};  // the first that is not 0, if any
  bool code_unreadable = false;             // it is there, and is no number
  std::string code_place = {};              // the document that has the code
  Evidence evidence = {};
};

struct SuiteWords {
  std::map<std::string, CaseWords, std::less<>> cases = {};
  // Of the whole suite: they concern every case.
  Evidence evidence = {};
  std::vector<std::string> notes = {};
};
SuiteWords ReadSuiteWords(const LogFolder& folder);

}  // namespace kv::mnn::logs
