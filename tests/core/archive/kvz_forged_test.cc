// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests archives with matching hashes and contradictory contents, and the other contents of a
// source table.
#include <catch2/catch.hpp>

#include "lib/core/archive/records.h"
#include "lib/core/base/hash.h"
#include "tests/support/archives.h"
#include "tests/support/temp_dir.h"

namespace kv::kvz_forged_test {
namespace {

using test::OpenBytes;
using test::Pack;
using test::Unpack;

kvz::SourceTable FolderOf(const std::vector<std::string>& names) {
  kvz::SourceTable table;
  table.is_folder = true;
  for (const std::string& name : names) table.files.push_back({name, 0, std::nullopt, false});
  return table;
}

Finding RefusalOf(const kvz::SourceTable& table) {
  try {
    kvz::DecodeTable(kvz::EncodeTable(table));
  } catch (const Error& error) {
    UNSCOPED_INFO(error.what());
    return error.finding();
  }
  return Finding::kInternal;  // accepted
}

Bytes Archived(const kvz::SourceTable& table) {
  const Bytes encoded = kvz::EncodeTable(table);
  ByteWriter out;
  out.Append(kvz::HeaderBytes());
  out.Append(kvz::TableRecord(kvz::RecordType::kSource, kvz::ReadTag(encoded), encoded));
  return out.Release();
}

// Counts the bytes that it receives and the calls.
class CountingTarget : public RestoreTarget, public Sink {
 public:
  Sink& Begin(size_t) override { return *this; }
  void End(size_t) override {}
  void Write(ByteSpan bytes) override { written += bytes.size(); }
  void Skip(uint64_t count) override {
    skipped += count;
    ++skips;
  }
  uint64_t written = 0, skipped = 0, skips = 0;
};

}  // namespace

TEST_CASE("kvz: what an archive declares and does not hold costs no work", "[kvz][damage]") {
  constexpr uint64_t kDeclared = uint64_t{1} << 50;
  kvz::SourceTable table;
  table.files.push_back({"", kDeclared, std::nullopt, false});
  const Bytes bytes = Archived(table);
  CHECK(bytes.size() == 100);
  const Archive archive = OpenBytes(bytes);
  REQUIRE_THROWS_AS(Unpack(archive), Error);
  ThreadPool pool(2);
  CountingTarget target;
  RestoreOptions options;
  options.keep_going = true;
  const RestoreReport report = Restore(archive, options, pool, target);
  CHECK(target.written == 0);
  CHECK(target.skipped == kDeclared);
  CHECK(target.skips == 1);
  CHECK(report.lost_bytes == kDeclared);
  CHECK(report.bytes == kDeclared);
  CHECK(!report.source_hash);
}

TEST_CASE("kvz: the zeros of a chunk that is lost are skipped, not written", "[kvz][damage]") {
  Source source;
  source.path = "x";
  Bytes noise(300'000);
  for (size_t i = 0; i < noise.size(); ++i)
    noise[i] = static_cast<std::byte>(Hash64(AsBytes(std::to_string(i))));
  source.files.push_back({"x", FileSource::FromBytes(noise, "x")});
  Bytes packed = Pack(source, nullptr, 100'000);
  const ArchivedChunk chunk = OpenBytes(packed).chunks()[1];
  packed[chunk.payload_offset + 5] ^= std::byte{1};
  ThreadPool pool(1);
  CountingTarget target;
  RestoreOptions options;
  options.keep_going = true;
  const RestoreReport report = Restore(OpenBytes(packed), options, pool, target);
  CHECK(target.written == 200'000);
  CHECK(target.skipped == 100'000);
  Bytes expected = noise;
  std::fill(expected.begin() + 100'000, expected.begin() + 200'000, std::byte{0});
  CHECK(report.source_hash == Hash64(expected));
}

TEST_CASE("kvz: one name cannot be a file and a folder", "[kvz]") {
  CHECK(RefusalOf(FolderOf({"a", "b/c", "b/d/e"})) == Finding::kInternal);
  CHECK(RefusalOf(FolderOf({"a", "a/b"})) == Finding::kDuplicateName);
  CHECK(RefusalOf(FolderOf({"a", "a-b", "a/b"})) == Finding::kDuplicateName);  // not neighbours
  CHECK(RefusalOf(FolderOf({"a/b", "a/b/c/d"})) == Finding::kDuplicateName);
  kvz::SourceTable table = FolderOf({"a/b"});
  table.empty_folders = {"a/c", "d"};
  CHECK(RefusalOf(table) == Finding::kInternal);
  for (const char* wrong : {"a", "a/b", "a/b/c"}) {
    table.empty_folders = {wrong};
    CHECK(RefusalOf(table) == Finding::kDuplicateName);
  }
  table.empty_folders = {"d", "d/e"};
  CHECK(RefusalOf(table) == Finding::kDuplicateName);
  table.empty_folders = {"e", "d"};
  CHECK(RefusalOf(table) == Finding::kDuplicateName);
  table.empty_folders = {"../d"};
  CHECK(RefusalOf(table) == Finding::kUnsafeName);

  Source source;  // built in memory: no file system has both a file `a` and a folder `a`
  source.is_folder = true;
  for (const char* name : {"a", "a/b"}) {
    source.files.push_back({name, FileSource::FromBytes({}, name)});
  }
  CHECK_THROWS_AS(Pack(source, nullptr), Error);
}

TEST_CASE("kvz: an index that names one record twice is refused", "[kvz][damage]") {
  Source source;
  source.path = "x";
  source.files.push_back({"x", FileSource::FromBytes(Bytes(1000), "x")});
  const Bytes packed = Pack(source, nullptr, 1000);
  const Archive honest = OpenBytes(packed);
  const ArchivedChunk& chunk = honest.chunks().at(0);

  kvz::SourceTable table;
  table.files.push_back({"", 2000, std::nullopt, false});
  const Bytes encoded = kvz::EncodeTable(table);
  ByteWriter forged;
  forged.Append(kvz::HeaderBytes());
  forged.Append(kvz::TableRecord(kvz::RecordType::kSource, kvz::ReadTag(encoded), encoded));
  const uint64_t record = forged.size();
  ByteWriter head;
  kvz::AppendHead(chunk.head, head);
  const ByteSpan payload = ByteSpan(packed).subspan(chunk.payload_offset, chunk.payload_bytes);
  forged.Append(kvz::RecordStart(kvz::RecordType::kChunk, kvz::ReadTag(encoded), head.bytes(),
                                 payload.size(), chunk.payload_hash));
  forged.Append(payload);
  ByteWriter index;
  index.U64(encoded.size());
  index.Append(encoded);
  index.U64(0);
  index.U64(0);
  index.U64(2);
  for (const uint64_t offset : {0, 1000}) {
    ChunkHead twice = chunk.head;
    twice.source_offset = offset;
    index.U64(record);
    index.U64(payload.size());
    index.U64(chunk.payload_hash);
    index.U32(static_cast<uint32_t>(kvz::kChunkHeadBytes));
    kvz::AppendHead(twice, index);
  }
  const uint64_t at = forged.size();
  forged.Append(kvz::TableRecord(kvz::RecordType::kIndex, kvz::ReadTag(encoded), index.bytes()));
  forged.Append(kvz::TrailerBytes({at, forged.size() - at, forged.size() + kvz::kTrailerBytes}));
  try {
    OpenBytes(forged.Release());
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kBadOffsets);
  }
}

TEST_CASE("kvz: empty folders and the executable bit are kept and compared", "[kvz]") {
  const test::TempDir dir;
  dir.WriteFile("tree/a", AsBytes("a"));
  dir.WriteFile("tree/run", AsBytes("run"));
  const Source plain = Source::Open(dir / "tree");
  std::filesystem::create_directories(dir / "tree/b/c");
  std::filesystem::permissions(dir / "tree/run", std::filesystem::perms::owner_exec,
                               std::filesystem::perm_options::add);
  const Source source = Source::Open(dir / "tree");
  const Archive archive = OpenBytes(Pack(source, nullptr));
  CHECK(archive.empty_folders() == std::vector<std::string>{"b/c"});
  CHECK(!archive.files()[0].executable);
  CHECK(archive.files()[1].executable);
  CHECK(SourceComparer(archive, source).differences().empty());
  CHECK(SourceComparer(archive, plain).differences().size() == 1);
  // A table without these fields keeps the version that older readers know.
  const kvz::SourceTable table = kvz::DescribeSource(plain, nullptr, {});
  CHECK(kvz::EncodeTable(table)[0] == std::byte{1});
  CHECK(kvz::EncodeTable(kvz::DescribeSource(source, nullptr, {}))[0] == std::byte{5});
}

}  // namespace kv::kvz_forged_test
