// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Compiled twice: unit_tests runs it with Linux's calls, portable_tests with those of POSIX alone.
#include "lib/core/base/system.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <set>
#include <string>
#include <thread>

#include "lib/core/base/output.h"
#include "tests/support/contents.h"
#include "tests/support/temp_dir.h"

namespace kv::system_test {
namespace {

// While an object of this class exists, every call that opens a descriptor fails with EMFILE.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const struct rlimit none = {0, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  struct rlimit before_;
};

int OpenFolder(const std::filesystem::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool IsReadable(int descriptor) {
  struct pollfd one = {descriptor, POLLIN, 0};
  return ::poll(&one, 1, 0) == 1;
}

}  // namespace

TEST_CASE("a file without a name gets one, or the system says that it has none", "[system]") {
  const test::TempDir dir;
  const int descriptor = sys::OpenUnnamed(AT_FDCWD, dir.path().c_str(), 0, 0600);
  if (descriptor < 0) {
    CHECK(output::LacksUnnamedFiles(errno));
    CHECK(sys::LinkUnnamed(0, AT_FDCWD, (dir / "out").c_str()) == -1);
  } else {
    CHECK(test::EntriesIn(dir.path()) == 0);
    CHECK(sys::LinkUnnamed(descriptor, AT_FDCWD, (dir / "out").c_str()) == 0);
    CHECK(test::EntriesIn(dir.path()) == 1);
    ::close(descriptor);
  }
}

TEST_CASE("names are exchanged, or nothing changes", "[system]") {
  const test::TempDir dir;
  dir.WriteFile("a/in", AsBytes("a"));
  dir.WriteFile("b/in", AsBytes("b"));
  const int done = sys::ExchangeNames((dir / "a").c_str(), (dir / "b").c_str());
  if (done != 0) CHECK(errno == EOPNOTSUPP);
  CHECK(test::Contents(dir / "a/in") == (done == 0 ? "b" : "a"));
  CHECK(test::Contents(dir / "b/in") == (done == 0 ? "a" : "b"));
}

TEST_CASE("a new name replaces no other, whether the system can see to that or not", "[system]") {
  const test::TempDir dir;
  dir.WriteFile("from", AsBytes("from"));
  dir.WriteFile("taken", AsBytes("taken"));
  const std::string from = dir / "from";
  CHECK(output::RenameNoReplace(from, dir / "taken") == -1);
  CHECK(errno == EEXIST);
  CHECK(output::RenameNoReplace(from, dir / "free") == 0);
  CHECK(test::Contents(dir / "taken") == "taken");
  CHECK(test::Contents(dir / "free") == "from");
}

TEST_CASE("a tree is written to the disk, or the call says that it was not", "[system]") {
  const test::TempDir dir;
  dir.WriteFile("tree/a/b", AsBytes("x"));
  const std::string name = dir / "tree";
  const int folder = OpenFolder(name);
  CHECK(sys::SyncTree(folder, name.c_str()) == 0);
  ::close(folder);
  CHECK(sys::SyncTree(-1, (dir / "missing").c_str()) == -1);
}

TEST_CASE("all names of a folder are read, again from the beginning", "[system]") {
  const test::TempDir dir;
  std::set<std::string> expected;
  for (int i = 0; i < 100; ++i) {
    const std::string name = std::string(100, 'n') + std::to_string(i);
    dir.WriteFile(name, AsBytes("x"));
    expected.insert(name);
  }
  const int folder = OpenFolder(dir.path());
  for (int pass = 0; pass < 2; ++pass) {
    std::set<std::string> found;
    sys::Names names(folder);
    while (const char* name = names.Next()) found.insert(name);
    CHECK(found == expected);
  }
  ::close(folder);
  CHECK(sys::Names(-1).Next() == nullptr);
}

TEST_CASE("memory is read and written as a file, and gives ranges back", "[system]") {
  constexpr size_t kSize = 1 << 20;
  const int memory = sys::OpenMemory();
  REQUIRE(memory >= 0);
  const std::string written(kSize, 'x');
  CHECK(::write(memory, written.data(), kSize) == static_cast<ssize_t>(kSize));
  sys::PunchHole(memory, 0, kSize / 2);
  std::string read(kSize, '?');
  CHECK(::pread(memory, read.data(), kSize, 0) == static_cast<ssize_t>(kSize));
  CHECK(read.substr(kSize / 2) == written.substr(kSize / 2));
  const std::string first = read.substr(0, kSize / 2);
  CHECK(first.find_first_not_of(first[0]) == first.npos);
  CHECK((first[0] == '\0' || first[0] == 'x'));
  CHECK((::fcntl(memory, F_GETFD) & FD_CLOEXEC) != 0);
  ::close(memory);
}

TEST_CASE("an event is readable from a write to the next read, and never blocks", "[system]") {
  const sys::Event event = sys::OpenEvent();
  REQUIRE(event.reader >= 0);
  uint64_t word = 1;
  for (int turn = 0; turn < 2; ++turn) {
    CHECK_FALSE(IsReadable(event.reader));
    CHECK(::read(event.reader, &word, sizeof(word)) == -1);
    CHECK(errno == EAGAIN);
    word = 1;
    CHECK(::write(event.writer, &word, sizeof(word)) == sizeof(word));
    CHECK(IsReadable(event.reader));
    CHECK(::read(event.reader, &word, sizeof(word)) == sizeof(word));
  }
  for (const int end : {event.reader, event.writer}) {
    CHECK((::fcntl(end, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((::fcntl(end, F_GETFL) & O_NONBLOCK) != 0);
  }
  ::close(event.reader);
  if (event.writer != event.reader) ::close(event.writer);
}

TEST_CASE("calls that get no descriptor say so", "[system]") {
  const test::TempDir dir;
  dir.WriteFile("in", AsBytes("x"));
  const std::string name = dir.path();
  int unnamed, memory, why;
  sys::Event event;
  {
    const NoDescriptors none;
    unnamed = sys::OpenUnnamed(AT_FDCWD, name.c_str(), 0, 0600);
    memory = sys::OpenMemory();
    why = errno;
    event = sys::OpenEvent();
  }
  CHECK(unnamed == -1);
  CHECK(memory == -1);
  CHECK(why == EMFILE);
  CHECK(event.reader == -1);
  CHECK(event.writer == -1);
}

TEST_CASE("a file system that holds no mark is no error", "[system]") {
  const test::TempDir dir;
  constexpr const char* kMark = "user.kvtool.test";
  const int folder = OpenFolder(dir.path());
  CHECK_FALSE(sys::HasMark(dir.path().c_str(), kMark));
  if (sys::SetMark(folder, kMark) == 0) CHECK(sys::HasMark(dir.path().c_str(), kMark));
  ::close(folder);
  CHECK(sys::SetMark(-1, kMark) == -1);
  CHECK_FALSE(sys::HasMark((dir / "missing").c_str(), kMark));
}

TEST_CASE("the system says who runs, on what, and when files were used", "[system]") {
  CHECK(sys::Random() != sys::Random());
  CHECK(sys::Cpus() >= 1);
  CHECK(sys::OnMainThread());
  bool in_thread = true;
  std::thread([&] { in_thread = sys::OnMainThread(); }).join();
  CHECK_FALSE(in_thread);
  CHECK(sys::PeakMemory() > uint64_t{1} << 20);
  const test::TempDir dir;
  const std::string times = sys::AccessTimes(dir.path().c_str());
  CHECK((times == "strict" || times == "relatime" || times == "noatime"));
  CHECK(std::string(sys::AccessTimes((dir / "missing").c_str())) == "unknown");
  struct stat status;
  REQUIRE(::stat(dir.path().c_str(), &status) == 0);
  CHECK(sys::ModifiedAt(status).tv_sec > 0);
  CHECK(sys::AccessedAt(status).tv_sec > 0);
}

}  // namespace kv::system_test
