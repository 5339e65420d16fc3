// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/core/base/bytes.h"
#include "lib/core/base/hash.h"
#include "lib/core/kernels/reorder.h"

namespace kv {

std::string Describe(const ChunkHead& head) {
  if (head.kind == ChunkKind::kOpaque) {
    return head.dtype == DType::kU8 ? "opaque bytes" : fmt::format("{} elements", Name(head.dtype));
  }
  std::string text =
      fmt::format("layer {} {} tokens {}:{}", head.layer, head.kind == ChunkKind::kKey ? 'K' : 'V',
                  head.token_begin, head.token_begin + head.tokens);
  return text;
}

Loss Approximation::WorstLoss(bool is_value) const {
  Loss worst;
  for (const Layer& layer : layers) {
    const Loss& loss = is_value ? layer.v : layer.k;
    worst.relative = std::max(worst.relative, loss.relative);
    worst.largest = std::max(worst.largest, loss.largest);
  }
  return worst;
}

namespace kvz {
namespace {

constexpr std::string_view kMagic = "\x89KVZ\r\n\x1a\n";
constexpr std::string_view kMarker = "KVZr";
constexpr std::string_view kTrailerMagic = "KVZ.END\n";

bool StartsWith(ByteSpan bytes, std::string_view text) {
  return bytes.size() >= text.size() && AsText(bytes.first(text.size())) == text;
}

Error Mismatch(std::string_view what, uint64_t stored, uint64_t computed, uint64_t offset) {
  return Error(Finding::kChecksum, "{}: checksum {:016x} stored, {:016x} computed", what, stored,
               computed)
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
    throw Error(Finding::kUnsupportedVersion, "archive version {}, this program reads {}", version,
                kVersion)
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
    throw Error(Finding::kTruncated, "{} bytes cannot hold header and trailer", archive.size());
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
                "the trailer describes an archive of {} bytes, this one has {}",
                trailer.archive_bytes, archive.size())
        .At(at);
  }
  return trailer;
}

uint32_t ReadTag(ByteSpan source_table) { return static_cast<uint32_t>(Hash64(source_table)); }

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
  const auto head_bytes = in.U32("header length");
  record.tag = in.U32("tag");
  record.payload_bytes = in.U64("payload length");
  record.payload_hash = in.U64("payload hash");
  if (head_bytes > kMaxHeadBytes) {
    throw Error(Finding::kBadField, "record header of {} bytes, at most {} expected", head_bytes,
                kMaxHeadBytes)
        .At(offset + 8);
  }
  record.head = in.Take(head_bytes, "record header");
  const uint64_t stored = in.U64("header hash");
  const uint64_t computed = Hash64(archive.subspan(offset, kPrefixBytes + head_bytes));
  if (stored != computed) throw Mismatch("record header", stored, computed, offset);
  record.payload_offset = in.offset();
  CheckedAdd(record.payload_offset, record.payload_bytes, "payload length");
  return record;
}

ByteSpan Payload(ByteSpan archive, uint64_t offset, uint64_t bytes, uint64_t hash) {
  if (offset > archive.size() || bytes > archive.size() - offset) {
    throw Error(Finding::kTruncated, "a payload of {} bytes, but only {} are left", bytes,
                archive.size() - std::min<uint64_t>(offset, archive.size()))
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
    // Marker bytes also occur inside payloads, so most candidates fail one of these checks.
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
  in.ExpectEnd("the header of a table");
  const auto id = static_cast<CodecId>(codec);
  if (reserved != 0) throw Error(Finding::kBadField, "reserved field is not 0").At(in.offset());
  if (codec > 0xff || (id != CodecId::kRaw && id != CodecId::kZstd)) {
    throw Error(Finding::kUnsupportedVersion, "table codec {} is unknown", codec)
        .At(record.offset + kPrefixBytes);
  }
  if (raw_bytes > max_bytes) {
    throw Error(Finding::kLimit, "a table of {} bytes, at most {} expected", raw_bytes, max_bytes)
        .At(record.offset + kPrefixBytes);
  }
  const ByteSpan payload =
      Payload(archive, record.payload_offset, record.payload_bytes, record.payload_hash);
  Bytes table(raw_bytes);
  CodecScratch scratch;
  DecodeChunk(id, {DType::kU8, raw_bytes, 1, 1, Order::kStorage}, payload, table, scratch);
  return table;
}

// ---- chunk headers ----

namespace {

void Require(bool holds, std::string_view rule) {
  if (!holds) throw Error(Finding::kBadField, "chunk header: broken rule: {}", rule);
}

void CheckOpaque(const ChunkHead& head) {
  ChunkHead plain;  // the only fields that an opaque chunk may have
  plain.file = head.file;
  plain.dtype = head.dtype;
  plain.codec = head.codec;
  plain.codec_parameter = head.codec_parameter;
  plain.raw_bytes = head.raw_bytes;
  plain.raw_hash = head.raw_hash;
  plain.source_offset = head.source_offset;
  plain.extent_bytes = head.raw_bytes;
  Require(head == plain, "an opaque chunk has no geometry");
  Require(!head.is_transformed(), "an opaque chunk has no coefficients");
  Require(!IsBlockQuantised(head.dtype), "an opaque chunk is bytes or plain elements");
}

void CheckTensor(const ChunkHead& head) {
  Require(!head.is_transformed() || (head.order == Order::kTokenHeadDim && !head.by_cells),
          "transformed rows have order 0 and are not in cell order");
  Require(!head.by_cells || (head.order == Order::kTokenHeadDim &&
                             !HasReferences(static_cast<CodecId>(head.codec))),
          "rows in cell order have order 0 and no references");
  Require(head.unit_bytes == Info(head.dtype).block_bytes, "units have the dtype's bytes");
  Require(head.order == Order::kTokenHeadDim || head.order == Order::kHeadTokenDim,
          "the order is 0 or 1");
  Require(head.source_order != Order::kStorage, "the source order is 0, 1 or 2");
  Require(head.heads_known || head.heads == 1, "unknown heads count as one head");
  const uint64_t row = CheckedProduct({head.heads, head.units, head.unit_bytes}, "chunk size");
  if (CheckedMul(row, head.tokens, "chunk size") != head.raw_bytes) {
    throw Error(Finding::kSizeMismatch, "chunk header: {} tokens x {} bytes are not {}",
                head.tokens, row, head.raw_bytes);
  }
  CheckedAdd(head.token_begin, head.tokens, "token range");
  CheckedAdd(head.extent_token_begin, head.tokens, "token range");
  if (!head.shares_extent()) {
    Require(head.extent_bytes == head.raw_bytes && head.extent_tokens == head.tokens &&
                head.extent_token_begin == 0,
            "the extent is exactly the chunk's range");
    return;
  }
  Require(head.extent_bytes <= kMaxExtentBytes, "an extent has at most 64 MiB");
  Require(CheckedMul(row, head.extent_tokens, "extent") == head.extent_bytes,
          "the extent holds its tokens");
  Require(head.extent_token_begin + head.tokens <= head.extent_tokens,
          "the tokens lie in the extent");
}

struct Strides {
  uint64_t token, head, unit;
};

Strides CodedStrides(const ChunkHead& head) {
  const uint64_t unit = head.unit_bytes, inner = head.units * unit;
  if (head.order == Order::kHeadTokenDim) return {inner, head.tokens * inner, unit};
  return {head.heads * inner, inner, unit};
}

Strides SourceStrides(const ChunkHead& head) {
  const uint64_t unit = head.unit_bytes, inner = head.units * unit;
  switch (head.source_order) {
    case Order::kTokenHeadDim:
      return {head.heads * inner, inner, unit};
    case Order::kHeadTokenDim:
      return {inner, head.tokens * inner, unit};
    case Order::kHeadDimToken:
      return {unit, head.extent_tokens * inner, head.extent_tokens * unit};
    case Order::kStorage:
      break;
  }
  AssertionFailed("the chunk has a source order", __FILE__, __LINE__);
}

void CopyUnits(const ChunkHead& head, const std::byte* from, const Strides& a, std::byte* to,
               const Strides& b) {
  for (uint32_t h = 0; h < head.heads; ++h) {
    CopyStrided2D(from + h * a.head, a.token, a.unit, to + h * b.head, b.token, b.unit, head.tokens,
                  head.units, head.unit_bytes);
  }
}

}  // namespace

void AppendHead(const ChunkHead& head, ByteWriter& out) {
  out.U32(head.file);
  out.U32(head.layer);
  out.U8(static_cast<uint8_t>(head.kind));
  out.U8(head.codec);
  out.U8(static_cast<uint8_t>(head.dtype));
  out.U8(static_cast<uint8_t>(head.order));
  out.U8(static_cast<uint8_t>(head.source_order));
  out.U8(head.heads_known ? 1 : 0);
  out.U16(head.by_cells ? 1 : 0);
  out.U64(head.token_begin);
  out.U64(head.tokens);
  for (const uint32_t value : {head.head_begin, head.heads, head.unit_begin, head.units,
                               head.unit_bytes, head.codec_parameter}) {
    out.U32(value);
  }
  for (const uint64_t value : {head.raw_bytes, head.raw_hash, head.source_offset, head.extent_bytes,
                               head.extent_tokens, head.extent_token_begin}) {
    out.U64(value);
  }
  out.Append(head.lead);
}

ChunkHead ReadHead(ByteReader& in) {
  ChunkHead head;
  head.file = in.U32("file");
  head.layer = in.U32("layer");
  head.kind = ReadEnum<ChunkKind>(in, 2, "kind");
  head.codec = in.U8("codec");
  head.dtype = ReadEnum<DType>(in, static_cast<uint8_t>(AllDTypes().size() - 1), "dtype");
  head.order = ReadEnum<Order>(in, 3, "order");
  head.source_order = ReadEnum<Order>(in, 3, "source order");
  head.heads_known = ReadEnum<uint8_t>(in, 1, "heads known") != 0;
  const uint32_t rows = in.U16("order of rows");
  Require(rows <= 1, "rows are as in the source or by cells");
  head.by_cells = rows == 1;
  head.token_begin = in.U64("first token");
  head.tokens = in.U64("tokens");
  head.head_begin = in.U32("first head");
  head.heads = in.U32("heads");
  head.unit_begin = in.U32("first unit");
  head.units = in.U32("units");
  head.unit_bytes = in.U32("unit bytes");
  head.codec_parameter = in.U32("codec parameter");
  head.raw_bytes = in.U64("decoded bytes");
  head.raw_hash = in.U64("decoded hash");
  head.source_offset = in.U64("source offset");
  head.extent_bytes = in.U64("extent bytes");
  head.extent_tokens = in.U64("extent tokens");
  head.extent_token_begin = in.U64("first token in the extent");

  const ByteSpan lead = in.Take(in.remaining(), "lead");
  head.lead.assign(lead.begin(), lead.end());
  Require(head.lead.size() <= kMaxLeadBytes && head.lead.size() <= head.source_offset,
          "the lead has at most 128 bytes");
  Require(head.lead.empty() || head.extent_token_begin == 0, "the lead is in a later chunk");

  if (head.raw_bytes == 0 || head.raw_bytes > kMaxChunkBytes) {
    throw Error(Finding::kLimit, "chunk header: {} decoded bytes, 1..{} expected", head.raw_bytes,
                kMaxChunkBytes);
  }
  CheckedAdd(head.source_offset, head.extent_bytes, "extent");
  head.kind == ChunkKind::kOpaque ? CheckOpaque(head) : CheckTensor(head);
  return head;
}

bool IsStoredAsIs(const ChunkHead& head) {
  if (head.shares_extent()) return false;
  return head.order == head.source_order || head.heads == 1;
}

void GatherChunk(const ChunkHead& head, ByteSpan extent, std::span<std::byte> raw) {
  KV_ASSERT(extent.size() == head.extent_bytes && raw.size() == head.raw_bytes);
  if (IsStoredAsIs(head)) {
    std::memcpy(raw.data(), extent.data(), raw.size());
    return;
  }
  const Strides from = SourceStrides(head);
  CopyUnits(head, extent.data() + head.extent_token_begin * from.token, from, raw.data(),
            CodedStrides(head));
}

void ScatterChunk(const ChunkHead& head, ByteSpan raw, std::span<std::byte> extent) {
  KV_ASSERT(extent.size() == head.extent_bytes && raw.size() == head.raw_bytes);
  if (IsStoredAsIs(head)) {
    std::memcpy(extent.data(), raw.data(), raw.size());
    return;
  }
  const Strides to = SourceStrides(head);
  CopyUnits(head, raw.data(), CodedStrides(head),
            extent.data() + head.extent_token_begin * to.token, to);
}

}  // namespace kvz
}  // namespace kv
