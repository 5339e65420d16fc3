// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/line/options.h"

namespace kv {

// What a run over many inputs came to.
class CorpusTotal {
 public:
  void Add(const std::string& path, int status, const CapturedRun& run);
  // One whose result was there already.
  void AddKnown() { ++known_; }
  size_t inputs() const { return done_ + negative_ + failed_ + known_; }
  uint64_t bytes() const { return bytes_; }
  // One line, and what failed; `more_than_names`: however few there were and whatever they did.
  void Tell(size_t all, bool more_than_names, Console& console) const;

 private:
  size_t done_ = 0, negative_ = 0, failed_ = 0, known_ = 0;
  uint64_t bytes_ = 0, archive_bytes_ = 0, restored_bytes_ = 0;
  uint64_t compressed_bytes_ = 0;  // of which archive_bytes_ are left
  std::vector<std::string> failures_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// One line on standard error of how far a run over many inputs is; with --progress json a line of
// JSON each time.
class CorpusProgress {
 public:
  CorpusProgress(Console& console, const GlobalOptions& global, size_t all);
  ~CorpusProgress();
  void Advance(const CorpusTotal& total);

 private:
  using Clock = std::chrono::steady_clock;
  void Draw(const CorpusTotal& total, Clock::time_point now);

  Console& console_;
  size_t all_;
  bool json_, enabled_, terminal_;
  Clock::time_point begin_ = Clock::now(), next_;
};

}  // namespace kv
