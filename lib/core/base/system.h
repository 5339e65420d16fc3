// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <array>
#include <charconv>
#include <cstdint>

// The calls that Linux and macOS do not have in common; no other file asks which system it is built
// for. A call that can fail returns -1 and sets errno.
//
// On macOS, calls of POSIX replace those that only Linux has. KVTOOL_PORTABLE chooses those forms
// on Linux as well, so that tests run them there.
namespace kv::sys {

// Opens a file without a name in a folder, whose name is relative to the descriptor `at`. With
// O_EXCL in `flags` the file never gets a name. If the file system has no such files, fails with an
// errno for which LacksUnnamedFiles is true; the caller then creates a file under a temporary name.
int OpenUnnamed(int at, const char* folder, int flags, mode_t mode);
// Gives a file of OpenUnnamed its name.
int LinkUnnamed(int descriptor, int at, const char* name);

// Fails with EEXIST if the name `to` exists, and with EINVAL, ENOSYS or EOPNOTSUPP if the file
// system cannot rename in this way.
int RenameExclusively(int at, const char* from, const char* to);
// Exchanges two names; fails as RenameExclusively if the file system cannot.
int ExchangeNames(const char* a, const char* b);

// Writes everything below a folder to the disk; `folder` is its descriptor, `name` its name.
int SyncTree(int folder, const char* name);

// Sets an extended attribute that marks a folder.
int SetMark(int descriptor, const char* attribute);
bool HasMark(const char* path, const char* attribute);

// The names in an open folder from its beginning, without "." and "..". A signal handler may use an
// object of this class: readdir allocates.
class Names {
 public:
  explicit Names(int folder);
  const char* Next();  // nullptr after the last; valid until the next call

 private:
  bool Fill();

  int folder_;
  long left_ = 0;  // bytes (Linux) or entries (macOS) of the buffer that were not returned yet
  char* at_ = nullptr;
  alignas(8) std::array<char, 1024> buffer_;
};

// Opens memory that can be read and written as a file; outside Linux an unnamed file in TMPDIR,
// which costs no memory while it is not used.
int OpenMemory();
// Releases the bytes of a range, which then read as zeros; if the system cannot, they stay.
void PunchHole(int descriptor, uint64_t begin, uint64_t size);

// A signal for event loops: after 8 bytes were written to `writer`, `reader` is readable until 8
// are read. Neither end blocks. On Linux both are one eventfd, elsewhere they are a pipe. Both are
// -1 if the system gave none.
struct Event {
  int reader = -1, writer = -1;
};
Event OpenEvent();

uint64_t Random();  // never waits; guessable only if the system has no entropy yet
int Cpus();         // CPUs that this process may use, 0 if unknown
bool OnMainThread();
uint64_t PeakMemory();                      // bytes
const char* AccessTimes(const char* path);  // "strict", "relatime", "noatime" or "unknown"

// Does what std::from_chars does, which macOS before 26 lacks for floating-point numbers.
std::from_chars_result ReadReal(const char* begin, const char* end, double& number);

timespec ModifiedAt(const struct stat& status);
timespec AccessedAt(const struct stat& status);

}  // namespace kv::sys
