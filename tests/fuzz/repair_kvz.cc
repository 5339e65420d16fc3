// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <vector>

#include "lib/core/archive/records.h"
#include "lib/core/base/hash.h"
#include "tests/fuzz/repair.h"

namespace kv::fuzz {
namespace {

constexpr uint64_t kMostTableBytes = 1 << 20, kMostChunkBytes = 1 << 20;

struct MutatedRecord {
  uint32_t type = 0;
  Bytes head, payload;
};

// Reads one record, delimited by its own lengths; its hashes are not checked.
std::optional<MutatedRecord> Parse(ByteSpan archive, uint64_t at, uint64_t& end) {
  ByteReader in(archive.subspan(at));
  if (archive.size() - at < kvz::kPrefixBytes) return std::nullopt;
  if (in.Text(4, "marker") != "KVZr") return std::nullopt;
  MutatedRecord record;
  record.type = in.U32("type");
  const uint32_t head_bytes = in.U32("head length");
  in.Skip(4, "tag");
  const uint64_t payload_bytes = in.U64("payload length");
  in.Skip(8, "payload hash");
  const uint64_t left = archive.size() - at - kvz::kPrefixBytes;
  if (head_bytes > kvz::kMaxHeadBytes || left < head_bytes + kvz::kHeadHashBytes ||
      left - head_bytes - kvz::kHeadHashBytes < payload_bytes) {
    return std::nullopt;
  }
  const auto copy = [](ByteSpan bytes) { return Bytes(bytes.begin(), bytes.end()); };
  record.head = copy(in.Take(head_bytes, "head"));
  in.Skip(kvz::kHeadHashBytes, "head hash");
  record.payload = copy(in.Take(payload_bytes, "payload"));
  end = at + in.offset();
  return record;
}

// Decodes the payload of a source or index record if possible, and stores it raw.
void Uncompress(MutatedRecord& record) {
  if (record.head.size() != kvz::kTableHeadBytes) return;
  const auto codec = static_cast<CodecId>(LoadLE<uint32_t>(record.head.data()));
  const uint64_t raw_bytes = LoadLE<uint64_t>(record.head.data() + 8);
  if (codec == CodecId::kRaw) {
    StoreLE(record.head.data() + 8, static_cast<uint64_t>(record.payload.size()));
    return;
  }
  if (codec != CodecId::kZstd || raw_bytes > kMostTableBytes) return;
  Bytes table(raw_bytes);
  CodecScratch scratch;
  try {
    DecodeChunk(codec, {DType::kU8, raw_bytes, 1, 1, Order::kStorage}, record.payload, table,
                scratch);
  } catch (const Error&) {
    return;
  }
  record.payload = std::move(table);
  StoreLE(record.head.data(), static_cast<uint32_t>(CodecId::kRaw));
}

void PutDecodedHash(MutatedRecord& record) {
  constexpr uint64_t kDecodedHashAt = 64;
  try {
    ByteReader in(record.head);
    const ChunkHead head = kvz::ReadHead(in);
    if (head.raw_bytes > kMostChunkBytes) return;
    Bytes raw(head.raw_bytes);
    CodecScratch scratch;
    DecodeChunk(static_cast<CodecId>(head.codec), head.shape(), record.payload, raw, scratch);
    StoreLE(record.head.data() + kDecodedHashAt, Hash64(raw));
  } catch (const Error&) {
    // If a header or payload is refused, its hash is left as it is.
  }
}

// Returns the fields of the old index between the table and its entries: hashes of the files and of
// the source.
Bytes HashesOfIndex(ByteSpan index, uint64_t files) {
  Bytes hashes((files + 1) * 8);
  if (index.size() < 8) return hashes;
  const uint64_t table = LoadLE<uint64_t>(index.data());
  if (table > index.size() - 8 || index.size() - 8 - table < hashes.size()) return hashes;
  const ByteSpan found = index.subspan(8 + table, hashes.size());
  return {found.begin(), found.end()};
}

struct Writer {
  ByteWriter out, entries;
  uint64_t chunks = 0;
  uint32_t tag = 0;

  void Put(const MutatedRecord& record) {
    const uint64_t offset = out.bytes().size(), hash = Hash64(record.payload);
    out.Append(kvz::RecordStart(static_cast<kvz::RecordType>(record.type), tag, record.head,
                                record.payload.size(), hash));
    out.Append(record.payload);
    if (record.type != static_cast<uint32_t>(kvz::RecordType::kChunk)) return;
    ++chunks;
    entries.U64(offset);
    entries.U64(record.payload.size());
    entries.U64(hash);
    entries.U32(static_cast<uint32_t>(record.head.size()));
    entries.Append(record.head);
  }
};

}  // namespace

Bytes RepairKvz(ByteSpan archive, const KvzRepair& repair) {
  std::vector<MutatedRecord> records;
  for (uint64_t at = kvz::kHeaderBytes; at < archive.size();) {
    auto record = Parse(archive, at, at);
    if (!record) break;
    records.push_back(std::move(*record));
  }
  if (records.empty()) return {archive.begin(), archive.end()};

  Writer writer;
  writer.out.Append(archive.first(16));
  writer.out.U64(Hash64(archive.first(16)));
  Uncompress(records.front());
  const Bytes table = records.front().payload;
  writer.tag = kvz::ReadTag(table);
  uint64_t index_offset = writer.out.bytes().size();
  for (MutatedRecord& record : records) {
    const bool is_index = record.type == static_cast<uint32_t>(kvz::RecordType::kIndex);
    if (is_index) Uncompress(record);
    if (record.type == static_cast<uint32_t>(kvz::RecordType::kChunk) && repair.decoded_hashes) {
      PutDecodedHash(record);
    }
    if (is_index && repair.rebuild_index) {
      const uint64_t files = table.size() < 8 ? 0 : LoadLE<uint32_t>(table.data() + 4);
      ByteWriter index;
      index.U64(table.size());
      index.Append(table);
      index.Append(HashesOfIndex(record.payload, std::min<uint64_t>(files, 1024)));
      index.U64(writer.chunks);
      index.Append(writer.entries.bytes());
      record.payload = index.Release();
      if (record.head.size() == kvz::kTableHeadBytes) {
        StoreLE(record.head.data() + 8, static_cast<uint64_t>(record.payload.size()));
      }
    }
    index_offset = writer.out.bytes().size();
    writer.Put(record);
  }
  const uint64_t end = writer.out.bytes().size();
  writer.out.Append(
      kvz::TrailerBytes({index_offset, end - index_offset, end + kvz::kTrailerBytes}));
  return writer.out.Release();
}

}  // namespace kv::fuzz
