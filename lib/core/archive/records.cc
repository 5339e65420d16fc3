// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/core/base/checked.h"
#include "lib/core/base/hash.h"

namespace kv::kvz {
namespace {

constexpr std::string_view kMagic = "\x89KVZ\r\n\x1a\n";
constexpr std::string_view kMarker = "KVZr";
constexpr std::string_view kTrailerMagic = "KVZ.END\n";

bool StartsWith(ByteSpan bytes, std::string_view text) {
  return bytes.size() >= text.size() && AsText(bytes.first(text.size())) == text;
}

Error Mismatch(std::string_view what, uint64_t stored, uint64_t computed, uint64_t offset) {
  return Error(Finding::kChecksum,
               fmt::format("{}: checksum {:016x} stored, {:016x} computed", what, stored, computed))
      .At(offset);
}

}  // namespace

Bytes HeaderBytes() {
  ByteWriter out;
  out.Append(kMagic);
  out.U32(kVersion);
  out.U32(0);
  out.U64(Hash64(out.bytes()));
  return out.Release();
}

bool HasMagic(ByteSpan archive) { return StartsWith(archive, kMagic); }

void CheckHeader(ByteSpan archive) {
  ByteReader in(archive.first(std::min<uint64_t>(archive.size(), kHeaderBytes)));
  const std::string_view magic = in.Text(kMagic.size(), "magic");
  const auto version = in.U32("version"), reserved = in.U32("reserved field");
  const uint64_t stored = in.U64("header hash"), computed = Hash64(archive.first(16));
  if (magic != kMagic) throw Error(Finding::kBadMagic, "the magic number is wrong").At(0);
  if (stored != computed) throw Mismatch("header", stored, computed, 16);
  if (version != kVersion || reserved != 0) {
    throw Error(Finding::kUnsupportedVersion,
                fmt::format("archive version {}, this program reads {}", version, kVersion))
        .At(8);
  }
}

Bytes TrailerBytes(const Trailer& trailer) {
  ByteWriter out;
  out.U64(trailer.index_offset);
  out.U64(trailer.index_bytes);
  out.U64(trailer.archive_bytes);
  out.U64(Hash64(out.bytes()));
  out.Append(kTrailerMagic);
  return out.Release();
}

bool HasTrailerMagic(ByteSpan archive) {
  return archive.size() >= kTrailerBytes &&
         StartsWith(archive.last(kTrailerMagic.size()), kTrailerMagic);
}

Trailer ReadTrailer(ByteSpan archive) {
  if (archive.size() < kHeaderBytes + kTrailerBytes) {
    throw Error(Finding::kTruncated,
                fmt::format("{} bytes cannot hold header and trailer", archive.size()));
  }
  const uint64_t at = archive.size() - kTrailerBytes;
  ByteReader in(archive.last(kTrailerBytes), at);
  Trailer trailer;
  trailer.index_offset = in.U64("index offset");
  trailer.index_bytes = in.U64("index length");
  trailer.archive_bytes = in.U64("archive length");
  const uint64_t stored = in.U64("trailer hash"), computed = Hash64(archive.subspan(at, 24));
  if (in.Text(kTrailerMagic.size(), "trailer magic") != kTrailerMagic) {
    throw Error(Finding::kBadMagic, "the archive does not end with a trailer").At(at + 32);
  }
  if (stored != computed) throw Mismatch("trailer", stored, computed, at + 24);
  if (trailer.archive_bytes != archive.size() || trailer.index_bytes > at - kHeaderBytes ||
      trailer.index_offset != at - trailer.index_bytes) {
    throw Error(Finding::kBadOffsets,
                fmt::format("the trailer describes an archive of {} bytes, this one has {}",
                            trailer.archive_bytes, archive.size()))
        .At(at);
  }
  return trailer;
}

uint32_t TagOf(ByteSpan source_table) { return static_cast<uint32_t>(Hash64(source_table)); }

Bytes RecordStart(RecordType type, uint32_t tag, ByteSpan head, uint64_t payload_bytes,
                  uint64_t payload_hash) {
  ByteWriter out;
  out.Append(kMarker);
  out.U32(static_cast<uint32_t>(type));
  out.U32(static_cast<uint32_t>(head.size()));
  out.U32(tag);
  out.U64(payload_bytes);
  out.U64(payload_hash);
  out.Append(head);
  out.U64(Hash64(out.bytes()));
  return out.Release();
}

Record ReadRecord(ByteSpan archive, uint64_t offset) {
  KV_ASSERT(offset <= archive.size());
  ByteReader in(archive.subspan(offset), offset);
  if (in.Text(kMarker.size(), "record marker") != kMarker) {
    throw Error(Finding::kBadMagic, "no record starts here").At(offset);
  }
  Record record;
  record.offset = offset;
  record.type = in.U32("record type");
  const auto head_bytes = in.U32("head length");
  record.tag = in.U32("tag");
  record.payload_bytes = in.U64("payload length");
  record.payload_hash = in.U64("payload hash");
  if (head_bytes > kMaxHeadBytes) {
    throw Error(Finding::kBadField, fmt::format("record head of {} bytes, at most {} expected",
                                                head_bytes, kMaxHeadBytes))
        .At(offset + 8);
  }
  record.head = in.Take(head_bytes, "record head");
  const uint64_t stored = in.U64("head hash");
  const uint64_t computed = Hash64(archive.subspan(offset, kPrefixBytes + head_bytes));
  if (stored != computed) throw Mismatch("record head", stored, computed, offset);
  record.payload_offset = in.offset();
  CheckedAdd(record.payload_offset, record.payload_bytes, "payload length");
  return record;
}

ByteSpan Payload(ByteSpan archive, uint64_t offset, uint64_t bytes, uint64_t hash) {
  if (offset > archive.size() || bytes > archive.size() - offset) {
    throw Error(Finding::kTruncated,
                fmt::format("a payload of {} bytes, {} are left", bytes,
                            archive.size() - std::min<uint64_t>(offset, archive.size())))
        .At(offset);
  }
  const ByteSpan payload = archive.subspan(offset, bytes);
  const uint64_t computed = Hash64(payload);
  if (computed != hash) throw Mismatch("payload", hash, computed, offset);
  return payload;
}

uint64_t FindRecord(ByteSpan archive, uint64_t from, uint32_t tag) {
  const std::string_view text = AsText(archive);
  for (uint64_t at = from; (at = text.find(kMarker, at)) != text.npos; ++at) {
    // Marker bytes may also lie inside a payload, so most candidates fail one of these.
    if (archive.size() - at < kPrefixBytes + kHeadHashBytes) break;
    const uint64_t head_bytes = LoadLE<uint32_t>(&archive[at + 8]);
    const uint64_t hashed = kPrefixBytes + head_bytes;
    if (head_bytes > kMaxHeadBytes || LoadLE<uint32_t>(&archive[at + 12]) != tag ||
        archive.size() - at < hashed + kHeadHashBytes) {
      continue;
    }
    if (Hash64(archive.subspan(at, hashed)) == LoadLE<uint64_t>(&archive[at + hashed])) return at;
  }
  return archive.size();
}

Bytes TableRecord(RecordType type, uint32_t tag, ByteSpan table) {
  CodecScratch scratch;
  const ChunkShape bytes{DType::kU8, table.size(), 1, 1, Order::kStorage};
  const EncodedChunk encoded = EncodeChunk(bytes, table, Effort::kCompat, scratch);
  ByteWriter head;
  head.U32(static_cast<uint32_t>(encoded.codec));
  head.U32(0);
  head.U64(table.size());
  Bytes record =
      RecordStart(type, tag, head.bytes(), encoded.payload.size(), Hash64(encoded.payload));
  record.insert(record.end(), encoded.payload.begin(), encoded.payload.end());
  return record;
}

Bytes ReadTable(ByteSpan archive, const Record& record, uint64_t max_bytes) {
  ByteReader in(record.head, record.offset + kPrefixBytes);
  const auto codec = in.U32("codec"), reserved = in.U32("reserved field");
  const uint64_t raw_bytes = in.U64("table length");
  in.ExpectEnd("the head of a table");
  const auto id = static_cast<CodecId>(codec);
  if (reserved != 0) throw Error(Finding::kBadField, "reserved field is not 0").At(in.offset());
  if (codec > 0xff || (id != CodecId::kRaw && id != CodecId::kZstd)) {
    throw Error(Finding::kUnsupportedVersion, fmt::format("table codec {} is unknown", codec))
        .At(record.offset + kPrefixBytes);
  }
  if (raw_bytes > max_bytes) {
    throw Error(Finding::kLimit,
                fmt::format("a table of {} bytes, at most {} expected", raw_bytes, max_bytes))
        .At(record.offset + kPrefixBytes);
  }
  const ByteSpan payload =
      Payload(archive, record.payload_offset, record.payload_bytes, record.payload_hash);
  Bytes table(raw_bytes);
  CodecScratch scratch;
  DecodeChunk(id, {DType::kU8, raw_bytes, 1, 1, Order::kStorage}, payload, table, scratch);
  return table;
}

}  // namespace kv::kvz
