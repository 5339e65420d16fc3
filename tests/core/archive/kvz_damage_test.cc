// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "lib/core/archive/records.h"
#include "lib/core/base/hash.h"
#include "tests/support/archives.h"
#include "tests/support/kv_source.h"
#include "tests/support/temp_dir.h"

namespace kv::kvz_damage_test {
namespace {

using test::KvSourceBuilder;
using test::OpenBytes;
using test::Pack;
using test::Unpack;
using Shape = KvSourceBuilder::Shape;

struct Sample {
  Snapshot snapshot;
  Bytes original, packed;
  std::vector<ArchivedChunk> chunks;
};

Sample MakeSample() {
  KvSourceBuilder builder;
  const Shape k{.tokens = 60, .heads = 2, .head_dim = 16};
  const Shape v{.order = Order::kHeadDimToken, .tokens = 60, .heads = 2, .head_dim = 16};
  builder.Layer(k, &v);
  Sample sample{builder.Build(), {}, {}, {}};
  sample.original = test::CopyOf(sample.snapshot.source.files[0].data->bytes());
  sample.packed = Pack(sample.snapshot.source, &sample.snapshot, 1000);
  sample.chunks = OpenBytes(sample.packed).chunks();
  return sample;
}

// Checks that restored bytes equal the original except in the reported lost ranges, which are zero.
void CheckRestored(const Sample& sample, const test::Unpacked& unpacked) {
  REQUIRE(unpacked.files.size() == 1);
  REQUIRE(unpacked.files[0].size() == sample.original.size());
  Bytes expected = sample.original;
  uint64_t lost = 0;
  for (const LostRange& range : unpacked.report.lost) {
    for (uint64_t run = 0; run < range.runs; ++run) {
      const uint64_t begin = range.offset + run * range.run_step;
      REQUIRE(begin + range.run_bytes <= expected.size());
      std::memset(expected.data() + begin, 0, range.run_bytes);
    }
    lost += range.bytes();
  }
  CHECK(lost == unpacked.report.lost_bytes);
  REQUIRE(unpacked.files[0] == expected);
}

TEST_CASE("kvz: any one flipped byte is found and costs at most its chunk", "[kvz][damage]") {
  const Sample sample = MakeSample();
  for (size_t at = 0; at < sample.packed.size(); ++at) {
    INFO("byte " << at);
    Bytes damaged = sample.packed;
    damaged[at] ^= static_cast<std::byte>(1 + at % 255);
    const Archive archive = OpenBytes(damaged);
    REQUIRE_THROWS_AS(Unpack(archive), Error);
    const test::Unpacked unpacked = Unpack(archive, true, 1 + at % 2);
    REQUIRE_FALSE(unpacked.report.damage.empty());
    CheckRestored(sample, unpacked);
    const auto hit =
        std::find_if(sample.chunks.begin(), sample.chunks.end(), [&](const ArchivedChunk& chunk) {
          return at >= chunk.payload_offset && at < chunk.record_end();
        });
    if (hit == sample.chunks.end()) {
      CHECK(unpacked.report.lost.empty());  // headers, tables and trailer are stored twice
    } else {
      REQUIRE(unpacked.report.lost.size() == 1);
      CHECK(unpacked.report.lost[0].chunk == hit->head);
      CHECK(unpacked.report.damage.back().chunk == hit->head);
    }
  }
}

TEST_CASE("kvz: an archive cut anywhere gives up the chunks it holds", "[kvz][damage]") {
  const Sample sample = MakeSample();
  const uint64_t first_chunk = sample.chunks[0].record_offset;
  size_t opened = 0;
  for (size_t size = 0; size < sample.packed.size(); ++size) {
    INFO("cut to " << size);
    const Bytes cut(sample.packed.begin(), sample.packed.begin() + static_cast<ptrdiff_t>(size));
    if (size < first_chunk) {
      REQUIRE_THROWS_AS(OpenBytes(cut), Error);
      continue;
    }
    const Archive archive = OpenBytes(cut);
    ++opened;
    REQUIRE_THROWS_AS(Unpack(archive), Error);
    const test::Unpacked unpacked = Unpack(archive, true);
    CheckRestored(sample, unpacked);
    uint64_t held = 0;
    for (const ArchivedChunk& chunk : sample.chunks) {
      if (chunk.record_end() <= size) held += chunk.head.raw_bytes;
      if (chunk.payload_offset <= size) held += chunk.head.lead.size();
    }
    REQUIRE(unpacked.report.lost_bytes == sample.original.size() - held);
  }
  CHECK(opened > 1000);
}

TEST_CASE("kvz: without its index, damage costs a chunk and the rest is found", "[kvz][damage]") {
  const Sample sample = MakeSample();
  const uint64_t end = sample.chunks.back().record_end();
  for (size_t hit = 0; hit < sample.chunks.size(); ++hit) {
    Bytes damaged(sample.packed.begin(), sample.packed.begin() + static_cast<ptrdiff_t>(end));
    damaged[sample.chunks[hit].record_offset + 16] ^= std::byte{0x40};  // its payload length
    const test::Unpacked unpacked = Unpack(OpenBytes(damaged), true);
    CheckRestored(sample, unpacked);
    const ChunkHead& head = sample.chunks[hit].head;
    CHECK(unpacked.report.lost_bytes == head.raw_bytes + head.lead.size());
  }
}

// Makes an archive with a forged source table and chunk, whose hashes all match.
Bytes Forge(const kvz::SourceTable& table, const std::vector<ChunkHead>& heads,
            const Bytes& payload = Bytes(8)) {
  using namespace kvz;
  const Bytes raw = EncodeTable(table);
  const uint32_t tag = ReadTag(raw);
  Bytes out = HeaderBytes();
  const auto put = [&](const Bytes& bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); };
  put(TableRecord(RecordType::kSource, tag, raw));
  ByteWriter index, entries;
  for (const ChunkHead& head : heads) {
    ByteWriter bytes;
    AppendHead(head, bytes);
    entries.U64(out.size());
    entries.U64(payload.size());
    entries.U64(Hash64(payload));
    entries.U32(static_cast<uint32_t>(kvz::kChunkHeadBytes + head.lead.size()));
    AppendHead(head, entries);
    put(RecordStart(RecordType::kChunk, tag, bytes.bytes(), payload.size(), Hash64(payload)));
    put(payload);
  }
  index.U64(raw.size());
  index.Append(raw);
  for (size_t i = 0; i < table.files.size(); ++i) index.U64(0);
  index.U64(0);
  index.U64(heads.size());
  index.Append(entries.bytes());
  const uint64_t offset = out.size();
  put(TableRecord(RecordType::kIndex, tag, index.bytes()));
  put(TrailerBytes({offset, out.size() - offset, out.size() + kTrailerBytes}));
  return out;
}

ChunkHead OpaqueHead(uint64_t offset, uint64_t size) {
  ChunkHead head;
  head.raw_bytes = head.extent_bytes = size;
  head.source_offset = offset;
  return head;
}

TEST_CASE("kvz: records of an archive inside a payload are not taken for one's own",
          "[kvz][damage]") {
  // The inner records are stored raw, so the search for records can find them.
  const Sample inner = MakeSample();
  kvz::SourceTable table;
  table.files.push_back({"", inner.packed.size(), std::nullopt});
  ChunkHead head = OpaqueHead(0, inner.packed.size());
  head.raw_hash = Hash64(inner.packed);
  Bytes outer = Forge(table, {head}, inner.packed);
  const Archive archive = OpenBytes(outer);
  REQUIRE(archive.damage().empty());
  outer.resize(archive.chunks()[0].record_end());
  CHECK(Unpack(OpenBytes(outer), true).files[0] == inner.packed);
  outer[archive.chunks()[0].record_offset] ^= std::byte{1};
  const test::Unpacked unpacked = Unpack(OpenBytes(outer), true);
  CHECK(unpacked.report.lost_bytes == inner.packed.size());
  CHECK(unpacked.files[0] == Bytes(inner.packed.size()));
}

TEST_CASE("kvz: another version is refused by number, damage of it is not taken for one",
          "[kvz][reject]") {
  const Sample sample = MakeSample();
  Bytes other = sample.packed;
  StoreLE<uint32_t>(&other[8], 2);
  CHECK_FALSE(OpenBytes(other).damage().empty());
  StoreLE<uint64_t>(&other[16], Hash64(ByteSpan(other).first(16)));
  try {
    OpenBytes(other);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kUnsupportedVersion);
    CHECK(error.message().find("version 2") != std::string::npos);
  }
}

Finding FindingOf(const Bytes& bytes) {
  try {
    Unpack(OpenBytes(bytes));
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding::kInternal;
}

TEST_CASE("kvz: malformed archives with right hashes are refused by name", "[kvz][reject]") {
  kvz::SourceTable table;
  table.files.push_back({"", 8, std::nullopt});
  const auto with = [&](const std::vector<ChunkHead>& heads) {
    return FindingOf(Forge(table, heads));
  };
  // A hash of 0 is not that of the decoded bytes.
  CHECK(with({OpaqueHead(0, 8)}) == Finding::kChecksum);
  CHECK(with({}) == Finding::kBadOffsets);
  CHECK(with({OpaqueHead(0, 4)}) == Finding::kBadOffsets);
  CHECK(with({OpaqueHead(1, 8)}) == Finding::kBadOffsets);
  CHECK(with({OpaqueHead(0, 8), OpaqueHead(0, 8)}) == Finding::kBadOffsets);
  CHECK(with({OpaqueHead(0, 6), OpaqueHead(4, 4)}) == Finding::kBadOffsets);
  CHECK(with({OpaqueHead(UINT64_MAX - 3, 8)}) == Finding::kOverflow);
  CHECK(with({OpaqueHead(0, uint64_t{1} << 40)}) == Finding::kLimit);
  CHECK(with({OpaqueHead(0, 0)}) == Finding::kLimit);
  ChunkHead head = OpaqueHead(0, 8);
  head.file = 1;
  CHECK(with({head}) == Finding::kBadOffsets);
  head = OpaqueHead(0, 8);
  head.codec = 99;
  CHECK(with({head}) == Finding::kUnsupportedVersion);
  head = OpaqueHead(0, 8);
  head.tokens = 1;
  CHECK(with({head}) == Finding::kBadField);
  head = OpaqueHead(0, 8);
  head.dtype = DType::kQ8_0;
  CHECK(with({head}) == Finding::kBadField);

  ChunkHead keys = OpaqueHead(0, 8);
  keys.kind = ChunkKind::kKey;
  keys.dtype = DType::kF16;
  keys.order = keys.source_order = Order::kTokenHeadDim;
  keys.tokens = keys.extent_tokens = 2;
  keys.heads = 1;
  keys.units = 2;
  keys.unit_bytes = 2;
  CHECK(with({keys}) == Finding::kChecksum);
  ChunkHead wrong = keys;
  wrong.tokens = 3;
  CHECK(with({wrong}) == Finding::kSizeMismatch);
  wrong = keys;
  wrong.tokens = UINT64_MAX / 2;
  CHECK(with({wrong}) == Finding::kOverflow);
  wrong = keys;
  wrong.unit_bytes = 4;
  CHECK(with({wrong}) == Finding::kBadField);
  wrong = keys;
  wrong.heads = 2;
  CHECK(with({wrong}) == Finding::kBadField);
  wrong = keys;
  wrong.extent_token_begin = 1;
  CHECK(with({wrong}) == Finding::kBadField);
  wrong = keys;
  wrong.source_order = Order::kHeadDimToken;
  wrong.extent_tokens = 1;
  CHECK(with({wrong}) == Finding::kBadField);
  // Two chunks of one extent both claim the first token.
  wrong = keys;
  wrong.source_order = Order::kHeadDimToken;
  wrong.tokens = 1;
  wrong.raw_bytes = 4;
  CHECK(with({wrong, wrong}) == Finding::kBadOffsets);
}

TEST_CASE("kvz: names that leave the output folder are refused", "[kvz][reject]") {
  for (const char* name : {"../x", "/etc/passwd", "a/../b", "a//b", ".", "a/.", "", "a\\b"}) {
    INFO(name);
    kvz::SourceTable table;
    table.is_folder = true;
    table.files.push_back({name, 0, std::nullopt});
    CHECK(FindingOf(Forge(table, {})) == Finding::kUnsafeName);
  }
  kvz::SourceTable table;
  table.is_folder = true;
  table.files.push_back({"a", 0, std::nullopt});
  table.files.push_back({"a", 0, std::nullopt});
  CHECK(FindingOf(Forge(table, {})) == Finding::kDuplicateName);
  table.is_folder = false;
  CHECK(FindingOf(Forge(table, {})) == Finding::kBadField);
}

TEST_CASE("kvz: something else is not an archive", "[kvz][reject]") {
  CHECK(FindingOf({}) == Finding::kBadMagic);
  CHECK(FindingOf(Bytes(1000, std::byte{0x55})) == Finding::kBadMagic);
}

}  // namespace
}  // namespace kv::kvz_damage_test
