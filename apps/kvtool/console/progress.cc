// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/console/progress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>

#include "lib/core/base/bytes.h"

namespace kv {
using namespace std::chrono_literals;

namespace {

// Returns true if a progress line is useful. For one input among many none is drawn, because the
// number of finished inputs is shown.
bool ShowsProgress(const Console& console, When when, bool is_long) {
  if (console.captured() != nullptr || console.embedding() != nullptr || when == When::kNever)
    return false;
  return when != When::kAuto ||
         ((console.stderr_is_terminal() || is_long) && console.verbosity >= 0);
}

}  // namespace

void PrintProgress(const ProgressState& state) {
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  const nlohmann::ordered_json line = {{"schema", "kvtool.progress/1"},
                                       {"label", or_null(state.label)},
                                       {"inputs_done", or_null(state.inputs_done)},
                                       {"inputs", or_null(state.inputs)},
                                       {"bytes_done", state.bytes_done},
                                       {"bytes", or_null(state.bytes)},
                                       {"elapsed_us", static_cast<uint64_t>(state.seconds * 1e6)}};
  std::fputs((JsonText(line, -1) + "\n").c_str(), stderr);
}

ProgressPace::ProgressPace(Console& console, When when, bool is_long)
    : console_(console),
      enabled_(ShowsProgress(console, when, is_long)),
      terminal_(console.stderr_is_terminal()),
      json_(when == When::kJson),
      step_(json_                            ? 1000ms
            : terminal_                      ? 100ms
            : is_long && when == When::kAuto ? 60000ms
                                             : 30000ms),
      begin_(Clock::now()),
      next_(begin_ + (json_       ? 0ms
                      : terminal_ ? 500ms
                      : is_long   ? 1000ms
                                  : 30000ms)) {}

ProgressPace::~ProgressPace() {
  if (terminal_ && enabled_) console_.ClearProgress();
}

std::optional<double> ProgressPace::Due(bool is_last) {
  const auto now = Clock::now();
  if (!enabled_ || (now < next_ && !(json_ && is_last))) return std::nullopt;
  next_ = now + step_;
  console_.FlushData();
  return std::chrono::duration<double>(now - begin_).count();
}

void ProgressPace::Draw(const std::string& line) {
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", line.c_str());
    return;
  }
  // Set before the line is drawn, so that a signal in between clears it.
  console_.set_progress_drawn(true);
  std::fprintf(stderr, "\r%s\x1b[K", Shortened(line, TerminalColumns(STDERR_FILENO) - 1).c_str());
}

ProgressLine::ProgressLine(Console& console, When when, const std::string& label, bool is_long)
    : console_(console), label_(Printable(label)), pace_(console, when, is_long) {}

void ProgressLine::Begin(uint64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  total_ += total_bytes;
}

void ProgressLine::Advance(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  if (console_.embedding() != nullptr) console_.embedding()->Progress(done_, total_);
  if (const std::optional<double> seconds = pace_.Due()) Draw(*seconds);
}

void ProgressLine::Draw(double seconds) {
  if (pace_.is_json()) {
    ProgressState state{label_, {}, {}, done_, {}, seconds};
    if (total_ > 0) state.bytes = total_;
    return PrintProgress(state);
  }
  std::vector<std::string> parts = {fmt::format("{}: {}", label_, HumanBytes(done_))};
  if (total_ > 0) {
    const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
    parts[0] += fmt::format(" of {} ({:.0f}%)", HumanBytes(total_), 100 * fraction);
    if (fraction > 0 && fraction <= 1)
      parts.push_back(fmt::format("{} left", HumanTimeLeft(seconds / fraction - seconds)));
  }
  parts.push_back(HumanRate(done_, seconds));
  // A line that wraps could not be cleared, so the least important parts are left out.
  const size_t width = TerminalColumns(STDERR_FILENO);
  while (parts.size() > 1 && fmt::format("{}", fmt::join(parts, ", ")).size() >= width) {
    parts.pop_back();
  }
  pace_.Draw(fmt::format("{}", fmt::join(parts, ", ")));
}

}  // namespace kv
