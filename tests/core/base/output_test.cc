// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <thread>

#include "lib/core/base/error.h"
#include "tests/support/contents.h"
#include "tests/support/memory_sink.h"
#include "tests/support/temp_dir.h"

namespace kv::output_test {
namespace fs = std::filesystem;
using test::Contents;
using test::EntriesIn;
namespace {

Finding FindingOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    UNSCOPED_INFO(error.what());
    return error.finding();
  }
  FAIL("nothing was thrown");
  return Finding::kInternal;
}
void Put(AtomicFolder& folder, const std::string& name, std::string_view text) {
  const auto file = folder.Create(name);
  file->Write(AsBytes(text));
  file->Close();
}
int NoExchange(const char*, const char*) {
  errno = EINVAL;
  return -1;
}

}  // namespace

TEST_CASE("without an exchange of names a folder is replaced by two renames", "[output]") {
  const test::TempDir dir;
  dir.WriteFile("fresh/new", AsBytes("new"));
  dir.WriteFile("out/old", AsBytes("old"));
  ReplaceFolder((dir / "fresh").string(), (dir / "out").string(), NoExchange);
  CHECK(Contents(dir / "out/new") == "new");
  CHECK(Contents(dir / "fresh/old") == "old");  // a leftover, which Temporary must remove
  CHECK(EntriesIn(dir.path()) == 2);
}

TEST_CASE("a replacement whose second rename fails leaves the old folder in place", "[output]") {
  const test::TempDir dir;
  dir.WriteFile("out/old", AsBytes("old"));
  CHECK(FindingOf([&] {
          ReplaceFolder((dir / "not-there").string(), (dir / "out").string(), NoExchange);
        }) == Finding::kWriteFailed);
  CHECK(Contents(dir / "out/old") == "old");
  CHECK(EntriesIn(dir.path()) == 1);
}

TEST_CASE("an exchange that fails for another reason changes nothing", "[output]") {
  const test::TempDir dir;
  dir.WriteFile("fresh/new", AsBytes("new"));
  dir.WriteFile("out/old", AsBytes("old"));
  const auto busy = [](const char*, const char*) {
    errno = EBUSY;
    return -1;
  };
  CHECK_THROWS_AS(ReplaceFolder((dir / "fresh").string(), (dir / "out").string(), busy), Error);
  CHECK(Contents(dir / "out/old") == "old");
  CHECK(Contents(dir / "fresh/new") == "new");
}

TEST_CASE("a folder left aside by a run that was killed gets its name back", "[output]") {
  const test::TempDir dir;
  dir.WriteFile(".out.kvtool-replaced/old", AsBytes("old"));
  CHECK(FindingOf([&] { const AtomicFolder folder(dir / "out", Overwrite::kRefuse); }) ==
        Finding::kExists);
  CHECK(Contents(dir / "out/old") == "old");
  CHECK(EntriesIn(dir.path()) == 1);
  // A replaced folder is removed if the name exists.
  dir.WriteFile(".out.kvtool-replaced/older", AsBytes("older"));
  CHECK_THROWS_AS(AtomicFolder(dir / "out", Overwrite::kRefuse), Error);
  CHECK(Contents(dir / "out/old") == "old");
  CHECK(EntriesIn(dir.path()) == 1);
}

TEST_CASE("only an empty folder, a marked one or a dump is replaced", "[output]") {
  const test::TempDir dir;
  dir.WriteFile("docs/letter", AsBytes("dear"));
  CHECK(FindingOf([&] { const AtomicFolder folder(dir / "docs", Overwrite::kAllow); }) ==
        Finding::kUsage);
  CHECK(Contents(dir / "docs/letter") == "dear");
  dir.WriteFile("plain", AsBytes("x"));
  CHECK(FindingOf([&] { const AtomicFolder folder(dir / "plain", Overwrite::kAllow); }) ==
        Finding::kUsage);

  OutputRules rules(Overwrite::kAllow);
  rules.is_dump = [](const std::string& folder) { return folder.ends_with("docs"); };
  AtomicFolder dump(dir / "docs", rules);
  Put(dump, "k", "1");
  dump.Commit();
  CHECK(Contents(dir / "docs/k") == "1");
  CHECK(EntriesIn(dir / "docs") == 1);

  fs::create_directory(dir / "empty");
  AtomicFolder empty(dir / "empty/", Overwrite::kAllow);
  Put(empty, "a/b/c", "2");
  empty.MakeFolder("a/d");
  empty.Commit();
  CHECK(Contents(dir / "empty/a/b/c") == "2");
  CHECK(fs::is_empty(dir / "empty/a/d"));
}

TEST_CASE("files that are dropped or refused leave no name behind", "[output]") {
  const test::TempDir dir;
  {
    AtomicFolder folder(dir / "out", Overwrite::kRefuse);
    Put(folder, "a/b", "x");
    CHECK_THROWS_AS(folder.Create("a/b"), Error);
    CHECK(EntriesIn(dir.path()) == 1);
  }
  CHECK(EntriesIn(dir.path()) == 0);
  CHECK_THROWS_AS(AtomicFile(dir / "missing/out", Overwrite::kRefuse), Error);
  const fs::path folder = dir / "folder";
  fs::create_directory(folder);
  CHECK(FindingOf([&] { const AtomicFile file(folder, Overwrite::kRefuse); }) == Finding::kExists);
  CHECK(FindingOf([&] { const AtomicFile file(folder, Overwrite::kAllow); }) == Finding::kUsage);
  CHECK(EntriesIn(dir.path()) == 1);
}

TEST_CASE("leftovers are removed unless a living run holds them", "[output]") {
  const test::TempDir dir;
  dir.WriteFile(".out.kvtool-1.tmp/a/b", AsBytes("x"));
  dir.WriteFile(".out.kvtool-2.tmp", AsBytes("x"));
  dir.WriteFile(".other.kvtool-3.tmp", AsBytes("x"));
  dir.WriteFile(".out.kvtool-held.tmp", AsBytes("x"));
  const int held = ::open((dir / ".out.kvtool-held.tmp").c_str(), O_RDONLY);
  REQUIRE(::flock(held, LOCK_EX) == 0);
  { const Temporary temporary(dir / "out"); }
  CHECK(!fs::exists(dir / ".out.kvtool-1.tmp"));
  // Writing a file finds the leftovers of a folder of the same name.
  dir.WriteFile(".plain.kvtool-4.tmp/a/b", AsBytes("x"));
  { const AtomicFile plain(dir / "plain", Overwrite::kRefuse); }
  CHECK(!fs::exists(dir / ".plain.kvtool-4.tmp"));
  CHECK(!fs::exists(dir / ".out.kvtool-2.tmp"));
  CHECK(fs::exists(dir / ".other.kvtool-3.tmp"));
  CHECK(fs::exists(dir / ".out.kvtool-held.tmp"));
  ::close(held);
}

TEST_CASE("what cannot be removed is remembered once, for a warning", "[output]") {
  const test::TempDir dir;
  dir.WriteFile("gone/a/b", AsBytes("x"));
  RemoveOrRemember((dir / "gone").string());
  RemoveOrRemember((dir / "never there").string());
  CHECK(TakeUnremoved().empty());
  RemoveOrRemember("/proc/self/status");  // nobody can
  CHECK(TakeUnremoved() == std::vector<std::string>{"/proc/self/status"});
  CHECK(TakeUnremoved().empty());
}

TEST_CASE("the longest name can be an output", "[output]") {
  const test::TempDir dir;
  const fs::path path = dir / std::string(255, 'n');
  for (int i = 0; i < 2; ++i) {
    AtomicFile file(path, Overwrite::kAllow);
    file.Write(AsBytes("x"));
    file.Commit();
  }
  const fs::path folder_path = dir / std::string(255, 'f');
  AtomicFolder folder(folder_path, Overwrite::kAllow);
  Put(folder, "x", "x");
  folder.Commit();
  CHECK(EntriesIn(dir.path()) == 2);
}

TEST_CASE("a signal's handler removes whole folders, whatever is added meanwhile", "[output]") {
  const test::TempDir dir;
  std::string deep = "d";
  for (int i = 0; i < 50; ++i) deep += "/d";
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFolder folder(dir / "out", Overwrite::kRefuse);
    for (int i = 0; i < 3000; ++i) Put(folder, "many/" + std::to_string(i), "x");
    Put(folder, deep + "/x", "x");
    std::thread([&] {
      for (int i = 0;; ++i) Put(folder, "more/" + std::to_string(i), "x");
    }).detach();
    ::usleep(20'000);
    RemoveTemporariesOnSignal();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(EntriesIn(dir.path()) == 0);
}

TEST_CASE("what is skipped in a file is a hole of zeros", "[output]") {
  const test::TempDir dir;
  constexpr uint64_t kHole = uint64_t{1} << 32;
  AtomicFile file(dir / "out", Overwrite::kRefuse);
  file.Write(AsBytes("a"));
  file.Skip(kHole);
  file.Write(AsBytes("b"));
  file.Skip(kHole);
  file.Commit();
  struct stat status;
  REQUIRE(::stat((dir / "out").c_str(), &status) == 0);
  CHECK(static_cast<uint64_t>(status.st_size) == 2 * kHole + 2);
  CHECK(status.st_blocks < 10'000);
  const int descriptor = ::open((dir / "out").c_str(), O_RDONLY);
  char b = 0;
  CHECK(::pread(descriptor, &b, 1, static_cast<off_t>(kHole + 1)) == 1);
  CHECK(b == 'b');
  ::close(descriptor);
  MemorySink memory;
  memory.Skip(3'000'000);
  CHECK(memory.bytes() == Bytes(3'000'000));
}

TEST_CASE("streams get what was written, seekable or not, in order", "[output]") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  {
    AtomicFile file("/dev/fd/" + std::to_string(ends[1]), Overwrite::kRefuse);
    CHECK(file.is_stream());
    file.Write(AsBytes("abc"));
    file.Skip(2);
    file.Commit();
    AtomicFile seeking("/dev/fd/" + std::to_string(ends[1]), Overwrite::kRefuse);
    seeking.NeedSeeking();
    seeking.Write(AsBytes("xyz"));
    seeking.WriteAt(0, AsBytes("X"));
    seeking.Commit();
  }
  ::close(ends[1]);
  char got[16];
  CHECK(std::string_view(got, static_cast<size_t>(::read(ends[0], got, sizeof(got)))) ==
        std::string_view("abc\0\0Xyz", 8));
  ::close(ends[0]);
}

TEST_CASE("permissions follow the source and never widen", "[output]") {
  const test::TempDir dir;
  const fs::path source = dir.WriteFile("source", AsBytes("s"));
  for (const mode_t mode : {0600u, 0640u, 0755u}) {
    ::chmod(source.c_str(), mode);
    OutputRules rules(Overwrite::kAllow);
    rules.like = Permissions::Of(source);
    AtomicFile file(dir / "out", rules);
    struct stat status;
    REQUIRE(::fstat(file.descriptor(), &status) == 0);
    CHECK((status.st_mode & 077) == 0);  // nobody else may read the unfinished file
    file.Commit();
    REQUIRE(::stat((dir / "out").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == mode);
  }
  dir.WriteFile("folder/a", AsBytes("a"));
  dir.WriteFile("folder/b/c", AsBytes("c"));
  ::chmod((dir / "folder/a").c_str(), 0755);
  ::chmod((dir / "folder/b/c").c_str(), 0640);
  ::chmod((dir / "folder").c_str(), 0755);
  CHECK(Permissions::Of(dir / "folder")->mode == 0640);
  CHECK(!Permissions::Of(dir / "missing"));
}

TEST_CASE("a file that was written to since it was opened is told from others", "[output]") {
  const test::TempDir dir;
  const fs::path path = dir.WriteFile("in", AsBytes("before"));
  const auto source = FileSource::Open(path);
  CHECK_NOTHROW(source->RequireUnchanged());
  dir.WriteFile("other", AsBytes("other"));
  fs::rename(dir / "other", path);  // replaces the name; the mapped file stays unchanged
  CHECK_NOTHROW(source->RequireUnchanged());
  const auto again = FileSource::Open(path);
  ::usleep(20'000);
  dir.WriteFile("in", AsBytes("after"));
  CHECK(FindingOf([&] { again->RequireUnchanged(); }) == Finding::kReadFailed);
}

TEST_CASE("streams are spooled up to a limit", "[output]") {
  const test::TempDir dir;
  const fs::path pipe = dir / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto send = [&] {
    const int descriptor = ::open(pipe.c_str(), O_WRONLY);
    const std::string data(1000, 'x');
    if (::write(descriptor, data.data(), data.size()) < 0) ::perror("pipe");
    ::close(descriptor);
  };
  std::thread writer(send);
  CHECK(FileSource::Open(pipe, 1000)->size() == 1000);
  writer.join();
  writer = std::thread(send);
  CHECK(FindingOf([&] { FileSource::Open(pipe, 999); }) == Finding::kLimit);
  writer.join();
  CHECK(FindingOf([&] { FileSource::Open("/dev/zero"); }) == Finding::kOpenFailed);
  CHECK(FileSource::Open("/dev/null")->size() == 0);
}

TEST_CASE("text from outside is printed without control characters", "[output]") {
  CHECK(Printable("plain é 漢 😀 \\x1b") == "plain é 漢 😀 \\x1b");
  CHECK(Printable("a\x1b[31m\n\t\x7f") == "a\\x1b[31m\\x0a\\x09\\x7f");
  CHECK(Printable("two\nlines\r", true) == "two\nlines\\x0d");
  CHECK(Printable("\xc2\x9b\xc2\xa0") == "\\xc2\\x9b\xc2\xa0");
  CHECK(Printable("\xff\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82") ==
        "\\xff\\xc0\\x80\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\\xe2\\x82");
  CHECK(Printable(std::string_view("a\0b", 3)) == "a\\x00b");
  // These characters change the direction of text: U+061C, U+200E, U+200F, U+202A..202E,
  // U+2066..2069.
  for (const char* mark :
       {"\xd8\x9c", "\xe2\x80\x8e", "\xe2\x80\x8f", "\xe2\x80\xaa", "\xe2\x80\xab", "\xe2\x80\xac",
        "\xe2\x80\xad", "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x81\xa7", "\xe2\x81\xa8",
        "\xe2\x81\xa9", "\xe2\x80\xa8", "\xe2\x80\xa9"}) {
    const std::string shown = Printable(std::string("a") + mark + "b");
    CHECK(shown.starts_with("a\\x"));
    CHECK(shown.ends_with("b"));
    CHECK(std::all_of(shown.begin(), shown.end(), [](char c) { return c > 0; }));
  }
  CHECK(Printable("\xd8\x9b\xe2\x80\x8d\xe2\x80\xb0\xe2\x81\xaa\xd7\xa9") ==
        // Other characters beside these ranges are kept.
        "\xd8\x9b\xe2\x80\x8d\xe2\x80\xb0\xe2\x81\xaa\xd7\xa9");
  const Error error = Error(Finding::kWriteFailed, "m\x1bsg").File("f\ni").In("c\x9b");
  CHECK(std::string(error.what()) == "f\\x0ai: c\\x9b: m\\x1bsg [KV0103]");
}

}  // namespace kv::output_test
