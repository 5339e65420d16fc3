// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/inputs/results_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/exit_status.h"
#include "apps/kvtool/line/options.h"
#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/core/base/output.h"
#include "lib/corpus/corpus.h"

namespace kv {
namespace {

// Whether a text without a newline can be what a kill left of the first line. It must name the
// schema: a shorter beginning, such as "{", is that of other files, too.
bool IsTornHead(std::string_view text) {
  const std::string head = JsonText({{"schema", corpus::kResultsSchema}}, -1);
  return text.starts_with(std::string_view(head).substr(0, head.size() - 1));  // without }
}

// Whether no other run has the file. One that was killed has it until its last thread is gone,
// which a run that follows at once need not notice. Some file systems of clusters have no locks;
// there the scheduler alone keeps runs apart.
bool TakesLock(int descriptor) {
  constexpr int kTries = 40;
  for (int i = 0; i < kTries; ++i) {
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

Error WriteFailure() {
  return {Finding::kWriteFailed, fmt::format("cannot write: {}", std::strerror(errno))};
}

}  // namespace

ResultsFile::ResultsFile(const std::string& path, const corpus::ResultsHead& head, bool anew)
    : path_(path), head_(head) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    throw Error(Finding::kOpenFailed, fmt::format("cannot open: {}", std::strerror(errno)))
        .File(path);
  }
  try {
    struct stat status;
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      throw Error(Finding::kUsage, "--results: is no regular file, to which more can be added");
    }
    if (!TakesLock(descriptor_)) throw Error(Finding::kExists, "another run writes to it");
    if (anew && ::ftruncate(descriptor_, 0) != 0) {
      throw WriteFailure();
    }
    Load();
  } catch (Error& error) {
    ::close(descriptor_);
    throw error.File(path);
  }
}

ResultsFile::~ResultsFile() { ::close(descriptor_); }

void ResultsFile::Load() {
  std::optional<corpus::ResultsHead> there;
  size_t whole = 0;
  if (::lseek(descriptor_, 0, SEEK_END) > 0) {
    const auto file = FileSource::FromDescriptor(::dup(descriptor_), path_);
    const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->size());
    whole = text.rfind('\n') + 1;  // npos + 1 is 0
    there = corpus::ReadResults(text, [&](const nlohmann::ordered_json& line, size_t number) {
      known_[corpus::TextIn(line, "key", number)] =
          static_cast<int>(corpus::NumberIn(line, "exit_code", number, UINT8_MAX));
    });
    if (!there && !IsTornHead(text)) {
      throw Error(Finding::kUsage, "--results: holds something else than results")
          .Hint("choose another name, or begin anew with -f");
    }
  }
  if (there) {
    std::string difference = there->DifferenceTo(head_);
    if (difference.empty() && there->shard.index != head_.shard.index) {
      difference = fmt::format("of shard {} rather than {}", there->shard.index, head_.shard.index);
    }
    if (!difference.empty()) {
      throw Error(Finding::kUsage, fmt::format("--results: has results {}", difference))
          .Hint("choose another name, or begin anew with -f");
    }
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(there ? whole : 0)) != 0) {
    throw WriteFailure();
  }
  continues_ = there.has_value();
  if (!there) Append(head_.ToJson(ReportHeader("results")["tool"]));
}

std::optional<int> ResultsFile::StatusOf(const std::string& key) const {
  const auto found = known_.find(key);
  if (found == known_.end()) return std::nullopt;
  // A disk may be back, and a bug mended.
  if (found->second == kIoError || found->second == kBug) return std::nullopt;
  return found->second;
}

void ResultsFile::Append(const nlohmann::ordered_json& line) {
  const std::string text = JsonText(line, -1) + "\n";
  const std::lock_guard lock(mutex_);
  if (is_torn_) return;  // whoever tore the last line has said so
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(descriptor_, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      is_torn_ = true;
      throw WriteFailure().File(path_);
    }
    at += static_cast<size_t>(written);
  }
}

void ResultsFile::Finish() {
  output::SyncNameOf(path_);
  if (::fsync(descriptor_) == 0) return;
  throw WriteFailure().File(path_);
}

}  // namespace kv
