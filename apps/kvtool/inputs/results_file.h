// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lib/corpus/results.h"

namespace kv {

// A file of JSON lines, one for each input of a run. Lines are appended whole, each in one write,
// so that a kill at any time leaves at most one torn line at the end, which the next run cuts off.
// What is there already need not be done again. One run at a time has the file.
class ResultsFile {
 public:
  // With `anew` whatever is there goes. Throws kUsage for the results of another run, for what is
  // no file of results, and for what is no regular file; kIo errors.
  ResultsFile(const std::string& path, const corpus::ResultsHead& head, bool anew);
  ~ResultsFile();
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  const corpus::ResultsHead& head() const { return head_; }
  // Whether an earlier run of the same has begun the file.
  bool continues() const { return continues_; }
  // The exit status of a result that is there, unless it should be tried again.
  std::optional<int> StatusOf(const std::string& key) const;
  // From any thread.
  void Append(const nlohmann::ordered_json& line);
  // What was written has reached the disk. Throws kWriteFailed.
  void Finish();

 private:
  void Load();

  const std::string path_;
  const corpus::ResultsHead head_;
  int descriptor_ = -1;
  std::map<std::string, int> known_;  // exit status by key
  std::mutex mutex_;
  bool continues_ = false;
  bool is_torn_ = false;  // a line could not be written whole: nothing may follow it
};

}  // namespace kv
