// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "apps/kvtool/console/console.h"
#include "lib/core/base/progress.h"

namespace kv {

// Whether there is anybody to look at progress.
bool ShowsProgress(const Console& console, When when);

// A line of --progress json (kvtool.progress/1), on standard error.
struct ProgressState {
  std::optional<std::string> label;  // of one input
  std::optional<uint64_t> inputs_done, inputs;
  uint64_t bytes_done = 0;
  std::optional<uint64_t> bytes;
  double seconds = 0;
};
void PrintProgress(const ProgressState& state);

// One line on stderr: bytes, percent, rate, time left. On a terminal after half a second, at most
// ten times a second; with --progress always and no terminal, a plain line every 30 seconds;
// with json a line for programs each second.
class ProgressLine : public Progress {
 public:
  ProgressLine(Console& console, When when, const std::string& label);
  ~ProgressLine() override;
  void Begin(uint64_t total_bytes) override;
  void Advance(uint64_t bytes) override;

 private:
  using Clock = std::chrono::steady_clock;
  void Draw(Clock::time_point now);

  Console& console_;
  std::string label_;
  bool enabled_, terminal_, json_;
  std::mutex mutex_;
  Clock::time_point begin_, next_;
  uint64_t total_ = 0, done_ = 0;
};

}  // namespace kv
