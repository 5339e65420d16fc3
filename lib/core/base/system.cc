// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Alone in its object: tests link another one, compiled with KVTOOL_PORTABLE.
#include "lib/core/base/system.h"

#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <thread>

#ifdef __APPLE__
#include <sys/attr.h>
#include <sys/mount.h>
#include <sys/stdio.h>
#include <xlocale.h>
#else
#include <dirent.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#endif

#if defined(__linux__) && !defined(KVTOOL_PORTABLE)
#define KV_LINUX_CALLS
#endif

namespace kv::sys {

namespace fs = std::filesystem;

#ifdef KV_LINUX_CALLS

int OpenUnnamed(int at, const char* folder, int flags, mode_t mode) {
  // A file without a name gets one through /proc.
  const bool gets_name = (flags & O_EXCL) == 0;
  if (gets_name && ::access("/proc/self/fd", X_OK) != 0) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return ::openat(at, folder, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, mode);
}

int LinkUnnamed(int descriptor, int at, const char* name) {
  std::array<char, 32> unnamed;
  std::snprintf(unnamed.data(), unnamed.size(), "/proc/self/fd/%d", descriptor);
  return ::linkat(AT_FDCWD, unnamed.data(), at, name, AT_SYMLINK_FOLLOW);
}

int RenameExclusively(int at, const char* from, const char* to) {
  return ::renameat2(at, from, at, to, RENAME_NOREPLACE);
}

int ExchangeNames(const char* a, const char* b) {
  return ::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

int SyncTree(int folder, const char*) { return ::syncfs(folder); }

int OpenMemory() { return ::memfd_create("kvtool", MFD_CLOEXEC); }

void PunchHole(int descriptor, uint64_t begin, uint64_t size) {
  static_cast<void>(::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(begin), static_cast<off_t>(size)));
}

Event OpenEvent() {
  const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return {descriptor, descriptor};
}

int Cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

bool OnMainThread() { return ::syscall(SYS_gettid) == ::getpid(); }

std::from_chars_result ReadReal(const char* begin, const char* end, double& number) {
  return std::from_chars(begin, end, number);
}

#else  // POSIX, and macOS where it has more

namespace {

int Unsupported() {
  errno = EOPNOTSUPP;
  return -1;
}

// macOS reports ENOTSUP, whose number differs from EOPNOTSUPP there.
[[maybe_unused]] int Renamed(int done) {
  if (done != 0 && errno == ENOTSUP) errno = EOPNOTSUPP;
  return done;
}

int SyncAndClose(int descriptor) {
  const int done = ::fsync(descriptor);
  const int why = errno;
  ::close(descriptor);
  errno = why;
  return done;
}

}  // namespace

int OpenUnnamed(int, const char*, int, mode_t) { return Unsupported(); }

int LinkUnnamed(int, int, const char*) { return Unsupported(); }

#ifdef __APPLE__
int RenameExclusively(int at, const char* from, const char* to) {
  return Renamed(::renameatx_np(at, from, at, to, RENAME_EXCL));
}
int ExchangeNames(const char* a, const char* b) {
  return Renamed(::renameatx_np(AT_FDCWD, a, AT_FDCWD, b, RENAME_SWAP));
}
#else
int RenameExclusively(int, const char*, const char*) { return Unsupported(); }
int ExchangeNames(const char*, const char*) { return Unsupported(); }
#endif

int SyncTree(int folder, const char* name) {
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(name, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const int descriptor = ::open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0 && errno == EACCES) continue;  // has the mode of an unreadable source
    if (descriptor < 0 || SyncAndClose(descriptor) != 0) return -1;
  }
  errno = failed.value();
  return failed ? -1 : ::fsync(folder);
}

int OpenMemory() {
  std::error_code failed;
  std::string name = (fs::temp_directory_path(failed) / "kvtool-XXXXXX").string();
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor >= 0) ::unlink(name.c_str());
  return descriptor;
}

void PunchHole([[maybe_unused]] int descriptor, [[maybe_unused]] uint64_t begin,
               [[maybe_unused]] uint64_t size) {
#ifdef __APPLE__
  fpunchhole_t hole = {};
  hole.fp_offset = static_cast<off_t>(begin);
  hole.fp_length = static_cast<off_t>(size);
  ::fcntl(descriptor, F_PUNCHHOLE, &hole);
#endif
}

Event OpenEvent() {
  std::array<int, 2> ends;
  if (::pipe(ends.data()) != 0) return {};
  for (const int end : ends) {
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
    ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
  return {ends[0], ends[1]};
}

int Cpus() { return static_cast<int>(std::thread::hardware_concurrency()); }

#ifdef __APPLE__
bool OnMainThread() { return ::pthread_main_np() != 0; }
#else
static const pthread_t first_thread = ::pthread_self();
bool OnMainThread() { return ::pthread_equal(::pthread_self(), first_thread) != 0; }
#endif

namespace {

// Returns the end of the number that std::from_chars would read: strtod also reads hexadecimal
// ones.
const char* EndOfReal(const char* at, const char* end) {
  const auto skip_digits = [&] {
    return at = std::find_if(at, end, [](char c) { return c < '0' || c > '9'; });
  };
  if (at < end && *at == '-') ++at;
  const char* const first = at;
  if (at < end && std::strchr("iInN", *at) != nullptr) {  // "inf", "nan"
    return std::find_if(at, end,
                        [](char c) { return std::isalpha(static_cast<unsigned char>(c)) == 0; });
  }
  uint64_t digits = skip_digits() - first;
  if (at < end && *at == '.') {
    const char* const point = at++;
    digits += skip_digits() - point - 1;
  }
  if (digits == 0) return nullptr;
  const char* const mantissa = at;
  if (at == end || (*at | 0x20) != 'e') return at;
  if (++at < end && (*at == '+' || *at == '-')) ++at;
  const char* const exponent = at;
  return skip_digits() > exponent ? at : mantissa;
}

}  // namespace

std::from_chars_result ReadReal(const char* begin, const char* end, double& number) {
  const char* const stop = EndOfReal(begin, end);
  if (stop == nullptr) return {begin, std::errc::invalid_argument};
  static const locale_t c_locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string text(begin, stop);
  char* taken = nullptr;
  const double read = ::strtod_l(text.c_str(), &taken, c_locale);
  if (taken == text.c_str()) return {begin, std::errc::invalid_argument};
  const char* const after = begin + (taken - text.c_str());
  // Infinity and zero are out of range unless they are written as such.
  const bool is_name = std::isalpha(static_cast<unsigned char>(*(after - 1))) != 0;
  const size_t first = text.find_first_of("123456789eE");
  const bool is_zero = first == text.npos || std::isalpha(static_cast<unsigned char>(text[first]));
  if (!is_name && (std::isinf(read) || (read == 0 && !is_zero))) {
    return {after, std::errc::result_out_of_range};
  }
  number = read;
  return {after, std::errc()};
}

#endif

namespace {

// Returns a number that differs at least between calls and processes.
uint64_t TimeAndCount() {
  static std::atomic<uint64_t> counter{0};
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return (static_cast<uint64_t>(now.tv_sec) << 30 ^ static_cast<uint64_t>(now.tv_nsec)) +
         (static_cast<uint64_t>(::getpid()) << 44) + counter++;
}

}  // namespace

uint64_t PeakMemory() {
#ifdef __APPLE__
  constexpr uint64_t kUnit = 1;
#else
  constexpr uint64_t kUnit = 1024;
#endif
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * kUnit;
}

Names::Names(int folder) : folder_(folder) { ::lseek(folder, 0, SEEK_SET); }

#ifdef __APPLE__

namespace {

constexpr size_t kEntrySize = sizeof(uint32_t), kNameAt = kEntrySize + sizeof(attribute_set_t);

}  // namespace

bool Names::Fill() {
  struct attrlist wanted = {};
  wanted.bitmapcount = ATTR_BIT_MAP_COUNT;
  wanted.commonattr = ATTR_CMN_RETURNED_ATTRS | ATTR_CMN_NAME;
  left_ = ::getattrlistbulk(folder_, &wanted, buffer_.data(), buffer_.size(), 0);
  at_ = buffer_.data();
  return left_ > 0;
}

// An entry has its size, the attributes that exist, and the offset of its name.
const char* Names::Next() {
  if (left_ <= 0 && !Fill()) return nullptr;
  char* const place = at_ + kNameAt;
  uint32_t size;
  attrreference_t name;
  std::memcpy(&size, at_, sizeof(size));
  std::memcpy(&name, place, sizeof(name));
  at_ += size;
  --left_;
  return place + name.attr_dataoffset;
}

uint64_t Random() {
  uint64_t value = 0;
  ::arc4random_buf(&value, sizeof(value));
  return value != 0 ? value : TimeAndCount();
}

int SetMark(int descriptor, const char* attribute) {
  return ::fsetxattr(descriptor, attribute, "1", 1, 0, 0);
}

bool HasMark(const char* path, const char* attribute) {
  return ::getxattr(path, attribute, nullptr, 0, 0, 0) >= 0;
}

const char* AccessTimes(const char* path) {
  struct statfs system;
  if (::statfs(path, &system) != 0) return "unknown";
  if ((system.f_flags & MNT_NOATIME) != 0) return "noatime";
  return (system.f_flags & MNT_STRICTATIME) != 0 ? "strict" : "relatime";
}

timespec ModifiedAt(const struct stat& status) { return status.st_mtimespec; }
timespec AccessedAt(const struct stat& status) { return status.st_atimespec; }

#else

bool Names::Fill() {
  left_ = ::syscall(SYS_getdents64, folder_, buffer_.data(), buffer_.size());
  at_ = buffer_.data();
  return left_ > 0;
}

const char* Names::Next() {
  while (left_ > 0 || Fill()) {
    const auto* entry = reinterpret_cast<const dirent64*>(at_);
    at_ += entry->d_reclen;
    left_ -= entry->d_reclen;
    const char* const name = entry->d_name;
    if (std::strcmp(name, ".") != 0 && std::strcmp(name, "..") != 0) return name;
  }
  return nullptr;
}

uint64_t Random() {
  uint64_t value = 0;
  if (::getrandom(&value, sizeof(value), GRND_NONBLOCK) == sizeof(value)) return value;
  return TimeAndCount();
}

int SetMark(int descriptor, const char* attribute) {
  return ::fsetxattr(descriptor, attribute, "1", 1, 0);
}

bool HasMark(const char* path, const char* attribute) {
  return ::getxattr(path, attribute, nullptr, 0) >= 0;
}

const char* AccessTimes(const char* path) {
  struct statvfs system;
  if (::statvfs(path, &system) != 0) return "unknown";
  if ((system.f_flag & ST_NOATIME) != 0) return "noatime";
  return (system.f_flag & ST_RELATIME) != 0 ? "relatime" : "strict";
}

timespec ModifiedAt(const struct stat& status) { return status.st_mtim; }
timespec AccessedAt(const struct stat& status) { return status.st_atim; }

#endif

}  // namespace kv::sys
