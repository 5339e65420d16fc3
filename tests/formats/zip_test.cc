// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/zip/zip.h"

#include <catch2/catch.hpp>

#include "tests/support/temp_dir.h"

namespace kv::zip_test {
namespace {

using test::TempDir;

Bytes BytesOfFile(const std::filesystem::path& path) {
  const auto source = FileSource::Open(path);
  return {source->bytes().begin(), source->bytes().end()};
}

Bytes Pattern(size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

Bytes WrittenZip(ZipWriter::Zip64 zip64,
                 const std::vector<std::pair<std::string, Bytes>>& members) {
  const TempDir folder;
  AtomicFile file(folder / "a.zip", Overwrite::kRefuse);
  ZipWriter writer(file, zip64);
  for (const auto& [name, bytes] : members) writer.Add(name, bytes);
  writer.Finish();
  file.Commit();
  return BytesOfFile(folder / "a.zip");
}

std::shared_ptr<const FileSource> InMemory(Bytes bytes) {
  return FileSource::FromBytes(std::move(bytes), "a.zip");
}

// A zip made by hand, so that each field can have a wrong value.
struct HandMade {
  std::string name = "x";
  Bytes content = Bytes(5, std::byte{'h'});
  uint16_t flags = 0, method = 0, local_method = 0;
  uint32_t crc = 0x397b8620;  // size and CRC of the content
  uint32_t size = 5, compressed_size = 5, local_size = 5;
  uint32_t directory_offset_shift = 0;
  int entries = 1, copies = 1;
  std::string comment, local_name = "x";

  Bytes Build() const {
    ByteWriter out;
    std::vector<uint64_t> at;
    for (int i = 0; i < copies; ++i) {
      at.push_back(out.size());
      out.U32(0x04034b50);
      out.Write<uint16_t>(20);
      out.Write(flags);
      out.Write(local_method);
      out.U32(0);
      out.U32(crc);
      out.U32(local_size);
      out.U32(local_size);
      out.Write(static_cast<uint16_t>(local_name.size()));
      out.Write<uint16_t>(0);
      out.Append(local_name);
      out.Append(content);
    }
    const uint64_t directory = out.size();
    for (int i = 0; i < copies; ++i) {
      out.U32(0x02014b50);
      out.U32(20 | 20 << 16);
      out.Write(flags);
      out.Write(method);
      out.U32(0);
      out.U32(crc);
      out.U32(compressed_size);
      out.U32(size);
      out.Write(static_cast<uint16_t>(name.size()));
      out.Pad(12);
      out.U32(static_cast<uint32_t>(at[static_cast<size_t>(i)]));
      out.Append(name);
    }
    const uint64_t length = out.size() - directory;
    out.U32(0x06054b50);
    out.U32(0);
    out.Write(static_cast<uint16_t>(entries));
    out.Write(static_cast<uint16_t>(entries));
    out.U32(static_cast<uint32_t>(length));
    out.U32(static_cast<uint32_t>(directory) + directory_offset_shift);
    out.Write(static_cast<uint16_t>(comment.size()));
    out.Append(comment);
    return out.Release();
  }
};

Finding Refusal(const Bytes& bytes, uint64_t max_bytes = 1 << 20) {
  try {
    ZipArchive archive(InMemory(bytes));
    archive.Inflate(max_bytes);
    for (const ZipEntry& entry : archive.entries()) {
      if (!entry.deflated) archive.CheckStored(entry);
    }
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding{0};
}

TEST_CASE("a zip reads back what was written, aligned and without a copy") {
  const std::vector<std::pair<std::string, Bytes>> members = {{"a.npy", Pattern(1)},
                                                              {"empty", {}},
                                                              {"folder/b.npy", Pattern(70000)},
                                                              {"k\xc3\xa9", Pattern(64)}};
  for (const auto zip64 : {ZipWriter::Zip64::kWhenNeeded, ZipWriter::Zip64::kAlways}) {
    const auto file = InMemory(WrittenZip(zip64, members));
    const ZipArchive archive(file);
    REQUIRE(archive.entries().size() == members.size());
    for (size_t i = 0; i < members.size(); ++i) {
      const ZipEntry& entry = archive.entries()[i];
      CHECK(entry.name == members[i].first);
      const ByteSpan data = archive.Data(entry);
      CHECK(Bytes(data.begin(), data.end()) == members[i].second);
      CHECK(entry.data_offset % 64 == 0);
      CHECK((data.empty() || file->Contains(data.data())));
      CHECK_NOTHROW(archive.CheckStored(entry));
      CHECK(archive.Find(members[i].first) == &entry);
    }
    CHECK(archive.Find("none") == nullptr);
  }
}

TEST_CASE("the same members give the same zip") {
  const auto once = [] { return WrittenZip(ZipWriter::Zip64::kWhenNeeded, {{"a", Pattern(100)}}); };
  CHECK(once() == once());
}

TEST_CASE("an empty zip has no entries") {
  const ZipArchive archive(InMemory(WrittenZip(ZipWriter::Zip64::kWhenNeeded, {})));
  CHECK(archive.entries().empty());
}

TEST_CASE("a changed byte of a stored member fails its CRC") {
  Bytes bytes = WrittenZip(ZipWriter::Zip64::kWhenNeeded, {{"a", Pattern(100)}});
  CHECK(Refusal(bytes) == Finding{0});
  bytes[64 + 50] ^= std::byte{1};
  CHECK(Refusal(bytes) == Finding::kChecksum);
}

TEST_CASE("deflated members inflate into a spool, stored ones beside them stay mapped") {
  HandMade zip;
  zip.method = zip.local_method = 8;
  // The deflate data is one stored block, marked final, of 5 bytes.
  zip.content =
      Bytes{std::byte{1},   std::byte{5},   std::byte{0},   std::byte{0xfa}, std::byte{0xff},
            std::byte{'h'}, std::byte{'e'}, std::byte{'l'}, std::byte{'l'},  std::byte{'o'}};
  zip.compressed_size = 10;
  zip.flags = 1 << 3;  // flag 3: the local header has no sizes
  zip.crc = 0x3610a686;
  ZipArchive archive(InMemory(zip.Build()));
  archive.Inflate(5);
  CHECK(AsText(archive.Data(archive.entries()[0])) == "hello");
  REQUIRE(archive.spool() != nullptr);

  CHECK(Refusal(zip.Build(), 4) == Finding::kLimit);
  zip.size = 4;
  CHECK(Refusal(zip.Build()) == Finding::kSizeMismatch);
  zip.size = 6;
  CHECK(Refusal(zip.Build()) == Finding::kSizeMismatch);
  zip.size = 0xfffffffe;
  CHECK(Refusal(zip.Build(), UINT64_MAX) == Finding::kSizeMismatch);
  zip.size = 5;
  zip.crc = 1;
  CHECK(Refusal(zip.Build()) == Finding::kChecksum);
  zip.content.push_back(std::byte{0});
  zip.compressed_size = 11;
  CHECK(Refusal(zip.Build()) == Finding::kSizeMismatch);
  zip.content[0] = std::byte{7};  // block type 3
  CHECK(Refusal(zip.Build()) == Finding::kBadPayload);
  zip.content.resize(4);
  zip.content[0] = std::byte{1};
  zip.compressed_size = 4;
  CHECK(Refusal(zip.Build()) == Finding::kSizeMismatch);
}

TEST_CASE("zip directories that lie are refused by name") {
  HandMade good;
  const auto with = [&](auto change) {
    HandMade zip = good;
    change(zip);
    return Refusal(zip.Build());
  };
  CHECK(with([](HandMade& z) { z.flags = 1; }) == Finding::kUnsupportedKind);
  CHECK(with([](HandMade& z) { z.method = z.local_method = 12; }) == Finding::kUnsupportedKind);
  CHECK(with([](HandMade& z) { z.local_method = 8; }) == Finding::kBadZip);
  CHECK(with([](HandMade& z) { z.local_name = "y"; }) == Finding::kBadZip);
  CHECK(with([](HandMade& z) { z.local_size = 4; }) == Finding::kBadZip);
  CHECK(with([](HandMade& z) { z.size = 4; }) == Finding::kSizeMismatch);
  CHECK(with([](HandMade& z) { z.size = z.compressed_size = z.local_size = 600; }) ==
        Finding::kBadOffsets);
  CHECK(with([](HandMade& z) { z.size = z.compressed_size = 0xffffffff; }) == Finding::kBadZip);
  CHECK(with([](HandMade& z) {
          z.copies = 2;
          z.entries = 2;
        }) == Finding::kDuplicateName);
  CHECK(with([](HandMade& z) { z.copies = 2; }) == Finding::kTrailingBytes);
  CHECK(with([](HandMade& z) { z.entries = 2; }) == Finding::kBadZip);
  CHECK(with([](HandMade& z) { z.directory_offset_shift = 1; }) == Finding::kBadZip);
  CHECK(Refusal({}) == Finding::kBadZip);
  CHECK(Refusal(Pattern(1000)) == Finding::kBadZip);
  CHECK(with([](HandMade&) {}) == Finding{0});
}

TEST_CASE("a comment may not hide a second end record") {
  HandMade zip;
  zip.comment = "plain words";
  CHECK(Refusal(zip.Build()) == Finding{0});
  zip.comment = std::string("PK\5\6") + std::string(18, '\0');
  CHECK(Refusal(zip.Build()) == Finding::kBadZip);
}

TEST_CASE("members that share bytes are refused") {
  // The second entry's local header is hidden in the content of the first.
  HandMade inner;
  Bytes bytes = inner.Build();
  const uint64_t local_bytes = 30 + 1 + 5;
  HandMade outer;
  outer.name = outer.local_name = "outer";
  outer.content.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(local_bytes));
  outer.size = outer.compressed_size = outer.local_size = static_cast<uint32_t>(local_bytes);
  Bytes whole = outer.Build();
  // The directory gets an entry for the inner file.
  const uint64_t end = whole.size() - 22;
  Bytes entry(bytes.begin() + static_cast<std::ptrdiff_t>(local_bytes), bytes.end() - 22);
  StoreLE<uint32_t>(&entry[42], 30 + 5);
  whole.insert(whole.begin() + static_cast<std::ptrdiff_t>(end), entry.begin(), entry.end());
  std::byte* tail = whole.data() + whole.size() - 22;
  StoreLE<uint16_t>(tail + 8, 2);
  StoreLE<uint16_t>(tail + 10, 2);
  StoreLE<uint32_t>(tail + 12, LoadLE<uint32_t>(tail + 12) + static_cast<uint32_t>(entry.size()));
  CHECK(Refusal(whole) == Finding::kBadOffsets);
}

}  // namespace
}  // namespace kv::zip_test
