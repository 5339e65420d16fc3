// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/inputs/corpus_total.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/console/text_width.h"
#include "apps/kvtool/exit_status.h"
#include "lib/core/base/bytes.h"

namespace kv {
using namespace std::chrono_literals;
namespace {

constexpr size_t kMostFailuresShown = 20;

uint64_t NumberIn(const nlohmann::ordered_json& document, const char* key) {
  if (!document.is_object() || !document.contains(key)) return 0;
  return document[key].is_number_unsigned() ? document[key].get<uint64_t>() : 0;
}

uint64_t InputBytes(const nlohmann::ordered_json& document) {
  if (!document.is_object() || !document.contains("inputs")) return 0;
  uint64_t bytes = 0;
  for (const nlohmann::ordered_json& input : document["inputs"]) bytes += NumberIn(input, "bytes");
  return bytes;
}

}  // namespace

void CorpusTotal::Add(const std::string& path, int status, const CapturedRun& run) {
  (status == kDone ? done_ : status == kVerdict ? negative_ : failed_) += 1;
  const uint64_t bytes = InputBytes(run.document);
  const uint64_t archived = NumberIn(run.document, "archive_bytes");
  bytes_ += bytes;
  archive_bytes_ += archived;
  if (archived > 0) compressed_bytes_ += bytes;
  restored_bytes_ += NumberIn(run.document, "restored_bytes");
  if (status < kInvalid || failures_.size() == kMostFailuresShown) return;
  failures_.push_back(run.failures.empty() ? Printable(path) : run.failures.front().what());
}

void CorpusTotal::Tell(size_t all, bool more_than_names, Console& console) const {
  if (!more_than_names && archive_bytes_ == 0 && restored_bytes_ == 0) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
  std::string text = fmt::format("{} inputs: {} done", all, done_);
  const auto add = [&](size_t count, std::string_view what) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  };
  add(negative_, "with a negative verdict");
  add(failed_, "failed");
  add(known_, "there already");
  add(all - inputs(), "not run");
  if (archive_bytes_ > 0) {
    text += fmt::format("; {} to {}, {}, {}", HumanBytes(compressed_bytes_),
                        HumanBytes(archive_bytes_), HumanRatio(compressed_bytes_, archive_bytes_),
                        HumanRate(compressed_bytes_, took.count()));
  } else if (restored_bytes_ > 0) {
    text += fmt::format("; {}, {}", HumanBytes(restored_bytes_),
                        HumanRate(restored_bytes_, took.count()));
  }
  console.Say(text);
  // One that ended the run was told just above.
  if (failed_ == 1 && inputs() < all) return;
  for (const std::string& failure : failures_) console.Say("  " + failure);
  if (failed_ > failures_.size()) {
    console.Say(fmt::format("  and {} more", failed_ - failures_.size()));
  }
}

CorpusProgress::CorpusProgress(Console& console, const GlobalOptions& global, size_t all)
    : console_(console), all_(all), terminal_(console.stderr_is_terminal()) {
  const When when = global.progress_when();
  enabled_ = ShowsProgress(console, when);
  json_ = when == When::kJson;
  next_ = begin_ + (json_ ? 0ms : terminal_ ? 500ms : 30000ms);
}

CorpusProgress::~CorpusProgress() {
  if (enabled_ && terminal_) console_.ClearProgress();
}

void CorpusProgress::Advance(const CorpusTotal& total) {
  if (console_.embedding() != nullptr) console_.embedding()->Progress(total.inputs(), all_);
  if (!enabled_) return;
  const auto now = Clock::now();
  const bool is_last = total.inputs() == all_;
  if (now < next_ && !(json_ && is_last)) return;
  next_ = now + (json_ ? 1000ms : terminal_ ? 100ms : 30000ms);
  Draw(total, now);
}

void CorpusProgress::Draw(const CorpusTotal& total, Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  if (json_) {
    return PrintProgress({{}, total.inputs(), all_, total.bytes(), {}, seconds});
  }
  const double fraction = static_cast<double>(total.inputs()) / static_cast<double>(all_);
  std::string line = fmt::format("{} of {} inputs ({:.0f}%)", total.inputs(), all_, 100 * fraction);
  if (fraction > 0) {
    line += fmt::format(", {} left", HumanTimeLeft(seconds / fraction - seconds));
  }
  if (total.bytes() > 0) line += ", " + HumanRate(total.bytes(), seconds);
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", line.c_str());
    return;
  }
  console_.set_progress_drawn(true);
  std::fprintf(stderr, "\r%s\x1b[K", Shortened(line, ColumnsOf(STDERR_FILENO) - 1).c_str());
}

}  // namespace kv
