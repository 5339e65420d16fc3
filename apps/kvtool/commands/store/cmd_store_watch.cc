// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool store watch`: adds states from a folder of slots as they are saved.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/store/store_commands.h"
#include "lib/core/base/system.h"

namespace kv {
namespace {

// A file's metadata, known without reading it.
struct Look {
  uint64_t inode = 0, size = 0;
  int64_t seconds = 0, nanoseconds = 0;
  bool operator==(const Look&) const = default;
};

struct Watched {
  Look look;
  std::chrono::steady_clock::time_point since;  // when the metadata last changed
  bool is_done = false;
  // After a failure: the time of the next try, the pause after it, and the message shown.
  std::chrono::steady_clock::time_point next_try;
  std::chrono::milliseconds pause{0};
  std::string said;
};

// Returns true if `slots` is the folder of the store or lies in it, so that it would watch its own
// additions.
bool IsWithin(const std::string& slots, const std::string& store) {
  std::error_code failed;
  std::filesystem::path folder = std::filesystem::canonical(slots, failed);
  while (!failed) {
    if (std::filesystem::equivalent(folder, store, failed)) return true;
    if (!folder.has_relative_path()) return false;
    folder = folder.parent_path();
  }
  return false;  // the store does not exist yet
}

// Returns true if some program has the file open for writing, as far as the system can tell.
bool IsBeingWritten(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return true;
  // The kernel refuses a read lease while there is a writer.
  const bool is_refused = ::fcntl(descriptor, F_SETLEASE, F_RDLCK) != 0 && errno == EAGAIN;
  ::close(descriptor);
  return is_refused;
}

class StoreWatch : public StoreCommand {
 public:
  void Declare(CommandLine& line) override {
    line.Add("--slots", slots_, "Folder to which an engine saves: --slot-save-path of llama-server")
        .Required();
    line.Add("--store", folder_, "Folder of the store; created if it does not exist").Required();
    line.Add("--level", level_, "Trades time for size: fast, default, high, max")
        .OneOf({"compat", "fast", "default", "high", "max"})
        .ShowDefault();
    line.Add("--settle-ms", settle_ms_, "How long a file must stay unchanged before it is added")
        .Between(10u, kMostSettle)
        .ShowDefault();
    line.AddFlag("--once", once_, "Add the files that are there now, then exit");
    limit_.Declare(line, "Limit on inflated or derived data (default: 64GiB)");
  }

  ExitStatus Run(Context& context) override {
    std::error_code failed;
    if (!std::filesystem::is_directory(slots_, failed)) {
      throw Error(Finding::kOpenFailed, "is not a folder").File(slots_);
    }
    if (IsWithin(slots_, folder_)) {
      throw Error(Finding::kUsage, "--slots is the store or is inside it: give a folder outside")
          .File(slots_);
    }
    // The store is created now, so that `list` finds it before the first save.
    Open(Use::kAdd, context);
    context.console.Say(fmt::format("{} -> {}: watching", Printable(slots_), Printable(folder_)));
    ThreadPool pool(context.global.thread_count());
    constexpr uint32_t kLooksPerSettling = 2;
    while (LookAround(pool, context) || !once_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(settle_ms_ / kLooksPerSettling + 1));
    }
    for (const std::string& path : empty_) LeaveOut(path, "is empty", context.console);
    totals_.Tell(context.console);
    return status_;
  }

 private:
  static constexpr uint32_t kMostSettle = 3600000;

  // Checks all files once. Returns true if there is more to do.
  bool LookAround(ThreadPool& pool, Context& context) {
    const auto now = std::chrono::steady_clock::now();
    std::map<std::string, Watched> found;
    empty_.clear();
    bool is_pending = false;
    std::error_code failed;
    for (std::filesystem::directory_iterator entry(slots_, failed), end; !failed && entry != end;
         entry.increment(failed)) {
      const std::string path = entry->path().string(), name = entry->path().filename().string();
      struct stat status;
      if (name.starts_with(".") || ::lstat(path.c_str(), &status) != 0) continue;
      if (!S_ISREG(status.st_mode)) continue;
      if (status.st_size == 0) {
        empty_.push_back(path);
        continue;
      }
      Watched file;
      const timespec modified = sys::ModifiedAt(status);
      file.look = {status.st_ino, static_cast<uint64_t>(status.st_size), modified.tv_sec,
                   modified.tv_nsec};
      file.since = now;
      const auto before = seen_.find(name);
      if (before != seen_.end() && before->second.look == file.look) file = before->second;
      const bool is_settled = now - file.since >= std::chrono::milliseconds(settle_ms_);
      if (!file.is_done && is_settled && now >= file.next_try && !IsBeingWritten(path)) {
        file.is_done = Add(path, file, pool, context) || once_;
      }
      is_pending |= !file.is_done;
      found.emplace(name, file);
    }
    seen_ = std::move(found);
    return is_pending;
  }

  void LeaveOut(const std::string& path, std::string_view why, Console& console) {
    console.Warn(path, fmt::format("{}: left out", why));
    ++totals_.left_out;
  }

  // Adds a file. A failure does not end the watch: the next save may be sound, and a store that is
  // full or damaged may be repaired. Until then the file is tried again, with pauses that double up
  // to a minute. Returns true if it is in the store, or is no state: folders of slots may hold
  // notes.
  bool Add(const std::string& path, Watched& file, ThreadPool& pool, Context& context) {
    try {
      OpenOptions options;
      options.metadata_only = options.any_batch = options.may_guess_axes = true;
      if (const auto most = limit_.most()) options.max_bytes = *most;
      store::AddOptions add;
      add.name = std::filesystem::path(path).filename().string();
      add.effort = *ParseEffort(level_);
      add.added_us = NowMicroseconds(context.global);
      totals_.Count(AddToStore(Source::Open(path), options, add, pool, context));
      return true;
    } catch (Error& error) {
      error.File(path);
      if (error.finding() == Finding::kUnknownFormat) {
        LeaveOut(path, error.message(), context.console);
        return true;
      }
      if (once_) totals_.failed.push_back(path);
      // Each reason is reported once.
      if (std::exchange(file.said, error.what()) != error.what()) context.console.Report(error);
      status_ = Worse(status_, ExitStatusFor(error.code()));
    }
    constexpr std::chrono::milliseconds kLongestPause = std::chrono::minutes(1);
    const std::chrono::milliseconds shortest(settle_ms_);
    file.pause = std::clamp(2 * file.pause, std::min(shortest, kLongestPause), kLongestPause);
    file.next_try = std::chrono::steady_clock::now() + file.pause;
    return false;
  }

  std::string slots_, level_ = "default";
  uint32_t settle_ms_ = 1000;
  bool once_ = false;
  SizeLimit limit_;
  ExitStatus status_ = kDone;
  AddTotals totals_;
  std::map<std::string, Watched> seen_;
  std::vector<std::string> empty_;
};

}  // namespace

std::unique_ptr<Command> MakeStoreWatch() { return std::make_unique<StoreWatch>(); }

}  // namespace kv
