// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Lines of progress, and when they are due.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "apps/kvtool/console/console.h"
#include "lib/core/base/progress.h"

namespace kv {

// A line of --progress json (kvtool.progress/1), on standard error.
struct ProgressState {
  std::optional<std::string> label;  // for one input
  std::optional<uint64_t> inputs_done, inputs;
  uint64_t bytes_done = 0;
  std::optional<uint64_t> bytes;
  double seconds = 0;
};
void PrintProgress(const ProgressState& state);

// The times at which progress appears on stderr. On a terminal: a line after half a second, at most
// ten times a second. With --progress always and no terminal: a plain line every 30 seconds; with
// json: a line for programs every second. Work that `is_long` also reports without a terminal,
// after a second and then every minute, so that the log of a batch job shows progress.
class ProgressPace {
 public:
  ProgressPace(Console& console, When when, bool is_long = false);
  ~ProgressPace();
  // Returns the seconds since the beginning if a line is due now.
  std::optional<double> Due(bool is_last = false);
  bool is_json() const { return json_; }
  void Draw(const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;

  Console& console_;
  bool enabled_, terminal_, json_;
  Clock::duration step_;  // time between lines
  Clock::time_point begin_, next_;
};

// A line with bytes, percent, rate and time left.
class ProgressLine : public Progress {
 public:
  ProgressLine(Console& console, When when, const std::string& label, bool is_long = false);
  void Begin(uint64_t total_bytes) override;
  void Advance(uint64_t bytes) override;

 private:
  void Draw(double seconds);

  Console& console_;
  std::string label_;
  ProgressPace pace_;
  std::mutex mutex_;
  uint64_t total_ = 0, done_ = 0;
};

}  // namespace kv
