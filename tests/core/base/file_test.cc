// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/file.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "lib/core/base/error.h"
#include "lib/core/base/output.h"
#include "tests/support/contents.h"
#include "tests/support/temp_dir.h"

namespace kv::file_test {
namespace fs = std::filesystem;
using test::Contents;
using test::EntriesIn;

TEST_CASE("an atomic file appears only when committed", "[file]") {
  const test::TempDir dir;
  const fs::path path = dir / "out";
  {
    AtomicFile file(path, Overwrite::kRefuse);
    file.Write(AsBytes("half"));
  }
  CHECK(EntriesIn(dir.path()) == 0);
  {
    AtomicFile file(path, Overwrite::kRefuse);
    file.Write(AsBytes("he"));
    file.Write(AsBytes("llo"));
    file.WriteAt(0, AsBytes("H"));
    CHECK(!fs::exists(path));
    file.Commit();
  }
  CHECK(Contents(path) == "Hello");
  CHECK(EntriesIn(dir.path()) == 1);
}

TEST_CASE("an existing file is refused without force and replaced whole with it", "[file]") {
  const test::TempDir dir;
  const fs::path path = dir.WriteFile("out", AsBytes("old"));
  REQUIRE_THROWS_AS(AtomicFile(path, Overwrite::kRefuse), Error);
  {
    AtomicFile dropped(path, Overwrite::kAllow);
    dropped.Write(AsBytes("new"));
  }
  CHECK(Contents(path) == "old");
  AtomicFile file(path, Overwrite::kAllow);
  file.Write(AsBytes("new"));
  file.Commit();
  CHECK(Contents(path) == "new");
  CHECK(EntriesIn(dir.path()) == 1);
}

TEST_CASE("a file that appears while another is written is not replaced", "[file]") {
  const test::TempDir dir;
  AtomicFile file(dir / "out", Overwrite::kRefuse);
  file.Write(AsBytes("mine"));
  dir.WriteFile("out", AsBytes("theirs"));
  REQUIRE_THROWS_AS(file.Commit(), Error);
  CHECK(Contents(dir / "out") == "theirs");
}

TEST_CASE("an atomic folder replaces the old one only when complete", "[file]") {
  const test::TempDir dir;
  dir.WriteFile("out/old", AsBytes("old"));
  REQUIRE_THROWS_AS(AtomicFolder(dir / "out", Overwrite::kRefuse), Error);
  OutputRules rules(Overwrite::kAllow);
  rules.is_dump = [](const std::string&) { return true; };
  { const AtomicFolder dropped(dir / "out", rules); }
  CHECK(fs::exists(dir / "out/old"));
  AtomicFolder folder(dir / "out", rules);
  folder.Create("new")->Close();
  folder.Commit();
  CHECK(fs::exists(dir / "out/new"));
  CHECK(!fs::exists(dir / "out/old"));
  CHECK(EntriesIn(dir.path()) == 1);
}

TEST_CASE("a folder source lists its files sorted and refuses links", "[file]") {
  const test::TempDir dir;
  dir.WriteFile("in/b/2", AsBytes("two"));
  dir.WriteFile("in/a", AsBytes(""));
  const Source source = Source::Open(dir / "in");
  REQUIRE(source.files.size() == 2);
  CHECK(source.files[0].name == "a");
  CHECK(source.Find("b/2")->data->size() == 3);
  CHECK(source.Find("b") == nullptr);
  for (const SourceFile& file : source.files) {
    if (file.data->size() == 0) continue;
    CHECK(source.FindFile(file.data->bytes().data()) == &file);
    CHECK(source.FindFile(&file.data->bytes().back()) == &file);
  }
  CHECK(source.FindFile(nullptr) == nullptr);
  fs::create_directories(dir / "in/c/d");
  fs::permissions(dir / "in/a", fs::perms::owner_exec, fs::perm_options::add);
  const Source again = Source::Open(dir / "in");
  CHECK(again.empty_folders == std::vector<std::string>{"c/d"});
  CHECK((again.files[0].executable && !again.files[1].executable));
  fs::create_symlink("a", dir / "in/link");
  REQUIRE_THROWS_AS(Source::Open(dir / "in"), Error);
}

TEST_CASE("dropped pages read back the same", "[file]") {
  const test::TempDir dir;
  Bytes data(1 << 20);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 >> 3);
  const auto source = FileSource::Open(dir.WriteFile("data", data));
  source->Drop(100, data.size());
  CHECK(std::equal(data.begin(), data.end(), source->bytes().begin()));
}

TEST_CASE("stored names must stay below their folder", "[file]") {
  for (const char* good : {"a", "a/b", "a.b/..c", "layer_0/k_t0_1.bin"})
    CHECK(IsSafeRelativePath(good));
  for (const char* bad : {"", "/a", "../a", "a/../b", "a//b", "a/", ".", "a/./b", "a\\b"}) {
    INFO(bad);
    CHECK(!IsSafeRelativePath(bad));
  }
  CHECK(!IsSafeRelativePath(std::string_view("a\0b", 3)));
}

TEST_CASE("a folder of very many files is read without a mapping for each", "[file]") {
  const test::TempDir dir;
  constexpr int kFiles = 5000;
  const std::string large(100'000, 'x');
  for (int i = 0; i < kFiles; ++i) {
    dir.WriteFile(fmt::format("f{}", i), AsBytes(std::to_string(i)));
  }
  dir.WriteFile("empty", {});
  dir.WriteFile("large", AsBytes(large));
  const Source source = Source::Open(dir.path());
  REQUIRE(source.files.size() == kFiles + 2);
  for (int i = 0; i < kFiles; ++i) {
    const SourceFile* file = source.Find(fmt::format("f{}", i));
    REQUIRE(file != nullptr);
    REQUIRE(AsText(file->data->bytes()) == std::to_string(i));
    REQUIRE(file->data->name() == (dir / file->name).string());
  }
  CHECK(source.Find("empty")->data->size() == 0);
  CHECK(AsText(source.Find("large")->data->bytes()) == large);
  for (const SourceFile& file : source.files) {
    if (file.data->size() == 0) continue;
    REQUIRE(source.FindFile(file.data->bytes().data()) == &file);
    file.data->Drop(0, file.data->size());
  }
  CHECK(AsText(source.Find("f4999")->data->bytes()) == "4999");  // this read comes from the spool
}

}  // namespace kv::file_test
