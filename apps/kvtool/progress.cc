// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/progress.h"

#include <fmt/format.h>

#include <cstdio>

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
  if (drawn_ && terminal_) {
    std::fputs("\r\x1b[K", stderr);
    console_.set_progress_drawn(false);
  }
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
  std::string line = fmt::format("{}: {}", label_, HumanBytes(done_));
  if (total_ > 0) {
    const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
    line += fmt::format(" of {} ({:.0f}%)", HumanBytes(total_), 100 * fraction);
    if (fraction > 0 && fraction <= 1)
      line += fmt::format(", {} left", HumanSeconds(seconds / fraction - seconds));
  }
  line += fmt::format(", {}", HumanRate(done_, seconds));
  std::fprintf(stderr, terminal_ ? "\r%s\x1b[K" : "%s\n", line.c_str());
  drawn_ = true;
  if (terminal_) console_.set_progress_drawn(true);
}

}  // namespace kv
