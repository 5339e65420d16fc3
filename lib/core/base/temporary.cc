// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/temporary.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "lib/core/base/system.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMark = ".kvtool-", kEnding = ".tmp";
// A file name has at most 255 bytes; mark, random part and ending need the rest.
constexpr size_t kMostOfName = 200;
constexpr int kDeepest = 2048;  // a path has at most 4096 bytes

// Names that a signal handler must remove: a fixed table of strings that are never freed, because a
// handler must not allocate.
std::array<std::atomic<const char*>, 64> names_in_use;
std::atomic<bool> ending{false};
std::atomic<int> holding_back{0};

std::mutex unremoved_mutex;
std::vector<std::string> unremoved;

void Remember(const std::string& name) {
  static std::mutex mutex;
  static auto* const all = new std::set<std::string>;
  std::unique_lock lock(mutex);
  const char* copy = all->insert(name).first->c_str();
  lock.unlock();
  for (auto& slot : names_in_use) {
    const char* expected = nullptr;
    if (slot.compare_exchange_strong(expected, copy)) return;
  }  // if the table is full, only cleanup on signals loses this name
}

void Forget(const std::string& name) {
  for (auto& slot : names_in_use) {
    const char* held = slot.load();
    if (held != nullptr && name == held && slot.compare_exchange_strong(held, nullptr)) return;
  }
}

std::string Beginning(const fs::path& path) {
  return "." + path.filename().string().substr(0, kMostOfName) + std::string(kMark);
}

// Removes our temporary names on which no process holds a lock: killed runs left them.
void RemoveBeside(const fs::path& folder, const std::string& beginning) {
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(beginning) || !name.ends_with(kEnding)) continue;
    const int descriptor =
        ::open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) RemoveOrRemember(entry->path());
    ::close(descriptor);
  }
}

void RemoveAt(int parent, const char* name, int depth) {
  if (::unlinkat(parent, name, 0) == 0 || (errno != EISDIR && errno != EPERM)) return;
  if (depth > kDeepest) return;
  const int folder = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return;
  // Another thread may still be adding entries, and removing some may make a pass skip others.
  constexpr int kMostPasses = 100;
  for (int pass = 0; pass < kMostPasses; ++pass) {
    sys::Names names(folder);
    while (const char* below = names.Next()) RemoveAt(folder, below, depth + 1);
    if (::unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno != ENOTEMPTY) break;
  }
  ::close(folder);
}

// Removes a file, or a folder with everything below it, as far as possible; does not follow links.
// Async-signal-safe.
void RemoveTree(const char* name) { RemoveAt(AT_FDCWD, name, 0); }

}  // namespace

fs::path ParentOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

Temporary::Temporary(const fs::path& path) {
  const std::string beginning = Beginning(path);
  const fs::path folder = ParentOf(path);
  RemoveBeside(folder, beginning);
  name_ = (folder / fmt::format("{}{:016x}{}", beginning, sys::Random(), kEnding)).string();
  Remember(name_);
}

Temporary::Temporary(Temporary&& other) noexcept : name_(std::exchange(other.name_, {})) {}

Temporary& Temporary::operator=(Temporary&& other) noexcept {
  if (this != &other) {
    Remove();
    name_ = std::exchange(other.name_, {});
  }
  return *this;
}

Temporary::~Temporary() { Remove(); }

bool Temporary::Claim(int descriptor) const {
  ::flock(descriptor, LOCK_EX | LOCK_NB);  // without locks leftovers are not removed either
  struct stat status;
  return ::fstat(descriptor, &status) == 0 && status.st_nlink > 0;
}

void Temporary::Release() {
  if (name_.empty()) return;
  Forget(name_);
  name_.clear();
}

void Temporary::Remove() {
  if (name_.empty()) return;
  RemoveOrRemember(name_);
  Release();
}

void RemoveLeftovers(const fs::path& path) { RemoveBeside(ParentOf(path), Beginning(path)); }

void RemoveOrRemember(const std::string& name) noexcept {
  RemoveTree(name.c_str());
  struct stat status;
  if (::lstat(name.c_str(), &status) != 0) return;
  try {
    const std::lock_guard lock(unremoved_mutex);
    unremoved.push_back(name);
  } catch (const std::bad_alloc&) {
    // Out of memory: the name is not remembered.
  }
}

std::vector<std::string> TakeUnremoved() {
  const std::lock_guard lock(unremoved_mutex);
  return std::exchange(unremoved, {});
}

void RemoveTemporariesOnSignal() {
  constexpr unsigned kMicroseconds = 100;
  while (holding_back > 0) ::usleep(kMicroseconds);
  ending = true;
  for (auto& slot : names_in_use) {
    const char* name = slot.load();
    if (name != nullptr) RemoveTree(name);
  }
}

// The calling thread blocks all signals; a handler in another thread waits until the object is
// gone.
EndingHeld::EndingHeld() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  ++holding_back;
}

EndingHeld::~EndingHeld() {
  --holding_back;
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void WaitIfEnding() {
  while (ending) ::pause();
}

}  // namespace kv
