// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/progress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>

#include "apps/kvtool/text_width.h"
#include "lib/core/base/bytes.h"

namespace kv {
using namespace std::chrono_literals;

ProgressLine::ProgressLine(Console& console, When when, const std::string& label)
    : console_(console), label_(Printable(label)), terminal_(console.stderr_is_terminal()) {
  enabled_ = when == When::kAlways || (when == When::kAuto && terminal_ && console.verbosity >= 0);
  begin_ = Clock::now();
  next_ = begin_ + (terminal_ ? 500ms : 30000ms);
}

ProgressLine::~ProgressLine() {
  if (terminal_) console_.ClearProgress();
}

void ProgressLine::Begin(uint64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  total_ += total_bytes;
}

void ProgressLine::Advance(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  if (console_.embedding() != nullptr) console_.embedding()->Progress(done_, total_);
  if (!enabled_) return;
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + (terminal_ ? 100ms : 30000ms);
  Draw(now);
}

void ProgressLine::Draw(Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  std::vector<std::string> parts = {fmt::format("{}: {}", label_, HumanBytes(done_))};
  if (total_ > 0) {
    const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
    parts[0] += fmt::format(" of {} ({:.0f}%)", HumanBytes(total_), 100 * fraction);
    if (fraction > 0 && fraction <= 1)
      parts.push_back(fmt::format("{} left", HumanTimeLeft(seconds / fraction - seconds)));
  }
  parts.push_back(HumanRate(done_, seconds));
  // A line that reached the next one could not be cleared: what matters least is left out.
  const size_t width = ColumnsOf(STDERR_FILENO);
  while (parts.size() > 1 && fmt::format("{}", fmt::join(parts, ", ")).size() >= width) {
    parts.pop_back();
  }
  const std::string line = fmt::format("{}", fmt::join(parts, ", "));
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", line.c_str());
    return;
  }
  // Before the line, so that a signal in between clears it.
  console_.set_progress_drawn(true);
  std::fprintf(stderr, "\r%s\x1b[K", Shortened(line, width - 1).c_str());
}

}  // namespace kv
