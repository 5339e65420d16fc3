// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/store/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/core/base/bytes.h"
#include "lib/core/base/file.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/utf8.h"
#include "lib/core/kernels/reorder.h"
#include "lib/core/snapshot/layout.h"

namespace kv::store {

namespace {

constexpr std::string_view kPackMagic("\x89KVP\r\n\x1a\n", 8), kObjectMagic("KVPo", 4);
constexpr uint32_t kVersion = 1;
constexpr uint64_t kHashedBytes = kObjectHeadBytes - 8;

void Require(bool holds, std::string_view rule, uint64_t at) {
  if (!holds) throw Error(Finding::kBadField, "object: broken rule: {}", rule).At(at);
}

// Rows that do not fill the object would make a decoder read beyond it.
void CheckShape(const ObjectHead& head, uint64_t at) {
  const ChunkShape& shape = head.shape;
  if (shape.order == Order::kStorage) return;
  Require(shape.order == Order::kTokenHeadDim, "the order is 0 or 3", at);
  const uint64_t row = CheckedMul(uint64_t{shape.heads}, shape.units_per_head, "object");
  const uint64_t units = CheckedMul(row, shape.tokens, "object");
  const uint64_t bytes = CheckedMul(units, uint64_t{Info(shape.dtype).block_bytes}, "object");
  Require(bytes == head.raw_bytes, "the shape fills the object", at);
}

}  // namespace

Bytes PackHeader() {
  ByteWriter out;
  out.Append(kPackMagic);
  out.U32(kVersion);
  out.U32(0);
  return out.Release();
}

void CheckPackHeader(const FileSource& pack) {
  ByteReader in(pack.bytes());
  if (in.Text(kPackMagic.size(), "magic") != kPackMagic)
    throw Error(Finding::kBadMagic, "this is not a pack of a store").At(0);
  const auto version = in.U32("version");
  if (version != kVersion) {
    throw Error(Finding::kUnsupportedVersion, "pack of version {}, {} is supported", version,
                kVersion);
  }
}

Bytes HeadBytes(const ObjectHead& head) {
  ByteWriter out;
  out.Append(kObjectMagic);
  out.U8(static_cast<uint8_t>(head.codec));
  out.U8(static_cast<uint8_t>(head.level));
  out.U8(static_cast<uint8_t>(head.shape.dtype));
  out.U8(static_cast<uint8_t>(head.shape.order));
  out.U32(head.shape.heads);
  out.U32(0);
  for (const uint64_t value : {head.shape.tokens, head.shape.units_per_head, head.raw_bytes,
                               head.raw_hash, head.payload_bytes, head.payload_hash}) {
    out.U64(value);
  }
  out.Append(head.id);
  out.U64(Hash64(out.bytes()));
  return out.Release();
}

ObjectHead ReadObjectHead(const FileSource& pack, uint64_t offset) {
  if (offset > pack.size())
    throw Error(Finding::kTruncated, "the pack ends before this object").At(offset);
  ByteReader in(pack.bytes().subspan(offset), offset);
  const ByteSpan bytes = in.Take(kObjectHeadBytes, "header of an object");
  ByteReader fields(bytes, offset);
  if (fields.Text(kObjectMagic.size(), "magic") != kObjectMagic)
    throw Error(Finding::kBadMagic, "no object begins here").At(offset);
  if (LoadLE<uint64_t>(&bytes[kHashedBytes]) != Hash64(bytes.first(kHashedBytes)))
    throw Error(Finding::kChecksum, "object header: checksum mismatch").At(offset);
  ObjectHead head;
  head.codec = static_cast<CodecId>(fields.U8("codec"));
  const auto level = fields.U8("level");
  Require(level <= static_cast<uint8_t>(Effort::kMax), "the level is known", offset);
  head.level = static_cast<Effort>(level);
  const auto dtype = fields.U8("dtype");
  if (dtype >= AllDTypes().size())
    throw Error(Finding::kUnknownDtype, "object: dtype {}", dtype).At(offset);
  head.shape.dtype = static_cast<DType>(dtype);
  const auto order = fields.U8("order");
  Require(order == 0 || order == 3, "the order is 0 or 3", offset);
  head.shape.order = static_cast<Order>(order);
  head.shape.heads = fields.U32("heads");
  Require(fields.U32("reserved") == 0, "the reserved field is 0", offset);
  head.shape.tokens = fields.U64("tokens");
  head.shape.units_per_head = fields.U64("units");
  head.raw_bytes = fields.U64("decoded bytes");
  head.raw_hash = fields.U64("decoded hash");
  head.payload_bytes = fields.U64("payload bytes");
  head.payload_hash = fields.U64("payload hash");
  const ByteSpan id = fields.Take(head.id.size(), "name");
  std::copy(id.begin(), id.end(), head.id.begin());
  if (head.raw_bytes == 0 || head.raw_bytes > kMaxObjectBytes) {
    throw Error(Finding::kLimit, "object of {} bytes, 1..{} expected", head.raw_bytes,
                kMaxObjectBytes)
        .At(offset);
  }
  CheckShape(head, offset);
  // Data that does not shrink is stored raw, so a payload is never larger. Without this rule,
  // checking the objects of a forged index, each claiming the rest of the pack, would take
  // quadratic time.
  Require(head.payload_bytes <= head.raw_bytes, "the payload is no larger than the decoded bytes",
          offset);
  in.Take(head.payload_bytes, "payload of an object");
  return head;
}

uint64_t FindObject(const FileSource& pack, uint64_t from) {
  const std::string_view text = AsText(pack.bytes());
  for (uint64_t at = from; at < text.size(); ++at) {
    at = text.find(kObjectMagic, at);
    if (at == std::string_view::npos) break;
    try {
      ReadObjectHead(pack, at);
      return at;
    } catch (const Error&) {
      // The magic number occurs in a payload by chance.
    }
  }
  return pack.size();
}

namespace {

ByteSpan TakePayload(const FileSource& pack, uint64_t offset, const ObjectHead& head) {
  return pack.bytes().subspan(offset + kObjectHeadBytes, head.payload_bytes);
}

}  // namespace

void CheckPayload(const FileSource& pack, uint64_t offset, const ObjectHead& head) {
  if (Hash64(TakePayload(pack, offset, head)) != head.payload_hash)
    throw Error(Finding::kChecksum, "object payload: checksum mismatch").At(offset);
}

void DecodeObject(const FileSource& pack, uint64_t offset, const ObjectHead& head,
                  CodecScratch& scratch, Bytes& raw) {
  CheckPayload(pack, offset, head);
  if (NeedsOthers(head.codec))
    throw Error(Finding::kBadField, "an object's codec needs no other data").At(offset);
  raw.resize(head.raw_bytes);
  DecodeChunk(head.codec, head.shape, TakePayload(pack, offset, head), raw, scratch);
  if (Hash64(raw) != head.raw_hash)
    throw Error(Finding::kChecksum, "an object does not decode to what was added").At(offset);
}

namespace {

constexpr std::string_view kStateMagic("\x89KVS\r\n\x1a\n", 8);
constexpr uint32_t kStateVersion = 1;
constexpr uint64_t kMostOfText = 4096;

void Text(ByteWriter& out, std::string_view text) {
  out.U32(static_cast<uint32_t>(text.size()));
  out.Append(text);
}

std::string TakeText(ByteReader& in, std::string_view field) {
  const uint32_t size = in.U32(field);
  if (size > kMostOfText)
    throw Error(Finding::kLimit, "{}: {} bytes of text", field, size).At(in.offset());
  return std::string(in.Text(size, field));
}

void RequireRule(bool holds, std::string_view rule, const ByteReader& in) {
  if (!holds) throw Error(Finding::kBadField, "state: broken rule: {}", rule).At(in.offset());
}

ObjectId TakeId(ByteReader& in) {
  ObjectId id;
  const ByteSpan bytes = in.Take(id.size(), "object");
  std::copy(bytes.begin(), bytes.end(), id.begin());
  return id;
}

void Write(ByteWriter& out, const Extent& extent) {
  out.U8(static_cast<uint8_t>(extent.kind));
  if (extent.kind == Extent::Kind::kLiteral) {
    out.U32(static_cast<uint32_t>(extent.literal.size()));
    out.Append(extent.literal);
    return;
  }
  out.U8(static_cast<uint8_t>(extent.dtype));
  if (extent.kind == Extent::Kind::kOpaque) {
    out.U64(extent.bytes);
  } else {
    out.U8(extent.is_value ? 1 : 0);
    out.U8(static_cast<uint8_t>(extent.order));
    out.U32(extent.layer);
    out.U32(extent.heads);
    out.U32(extent.units);
    out.U64(extent.token_begin);
    out.U64(extent.tokens);
  }
  out.U32(static_cast<uint32_t>(extent.pieces.size()));
  for (const Piece& piece : extent.pieces) {
    out.U64(piece.count);
    out.Append(piece.id);
  }
}

Extent ReadExtent(ByteReader& in) {
  Extent extent;
  const uint8_t kind = in.U8("kind of an extent");
  RequireRule(kind <= 2, "an extent is of kind 0, 1 or 2", in);
  extent.kind = static_cast<Extent::Kind>(kind);
  if (extent.kind == Extent::Kind::kLiteral) {
    const ByteSpan bytes = in.Take(in.U32("bytes of an extent"), "bytes of an extent");
    extent.literal.assign(bytes.begin(), bytes.end());
    return extent;
  }
  const uint8_t dtype = in.U8("dtype");
  RequireRule(dtype < AllDTypes().size(), "the dtype is known", in);
  extent.dtype = static_cast<DType>(dtype);
  if (extent.kind == Extent::Kind::kOpaque) {
    extent.bytes = in.U64("bytes of an extent");
  } else {
    const uint8_t is_value = in.U8("K or V"), order = in.U8("order");
    RequireRule(is_value <= 1 && order <= 2, "K or V is 0 or 1, the order 0, 1 or 2", in);
    extent.is_value = is_value == 1;
    extent.order = static_cast<Order>(order);
    extent.layer = in.U32("layer");
    extent.heads = in.U32("heads");
    extent.units = in.U32("units");
    extent.token_begin = in.U64("first token");
    extent.tokens = in.U64("tokens");
    const uint64_t units = CheckedMul(uint64_t{extent.heads}, uint64_t{extent.units}, "row");
    const uint64_t row = CheckedMul(units, uint64_t{Info(extent.dtype).block_bytes}, "row");
    const uint64_t bytes = CheckedMul(row, extent.tokens, "tensor");
    RequireRule(extent.in_order() || bytes <= kMostOfTensor,
                "a tensor that is not stored token by token has at most 1 GiB", in);
  }
  const uint32_t pieces = in.U32("objects");
  constexpr uint64_t kPieceBytes = sizeof(uint64_t) + sizeof(ObjectId);
  RequireRule(pieces <= in.remaining() / kPieceBytes, "all objects are named", in);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < pieces; ++i) {
    Piece piece;
    piece.count = in.U64("extent of an object");
    piece.id = TakeId(in);
    RequireRule(piece.count != 0, "an object has at least one byte", in);
    sum = CheckedAdd(sum, piece.count, "extent");
    RequireRule(extent.BytesOf(piece) <= kMaxObjectBytes, "an object has at most 16 MiB", in);
    extent.pieces.push_back(piece);
  }
  const bool is_opaque = extent.kind == Extent::Kind::kOpaque;
  RequireRule(sum == (is_opaque ? extent.bytes : extent.tokens), "objects fill their extent", in);
  return extent;
}

bool TakeFlag(ByteReader& in, std::string_view field) {
  const uint8_t value = in.U8(field);
  RequireRule(value <= 1, "a flag is 0 or 1", in);
  return value == 1;
}

StoredFile ReadFile(ByteReader& in, bool is_folder) {
  StoredFile file;
  file.name = TakeText(in, "name of a file");
  if (is_folder ? !IsSafeRelativePath(file.name) : !file.name.empty())
    throw Error(Finding::kUnsafeName, "'{}' cannot name a file", file.name).At(in.offset());
  file.size = in.U64("size of a file");
  file.hash = in.U64("hash of a file");
  file.executable = TakeFlag(in, "executable");
  const uint32_t extents = in.U32("extents");
  uint64_t sum = 0;
  for (uint32_t i = 0; i < extents; ++i) {
    file.extents.push_back(ReadExtent(in));
    sum = CheckedAdd(sum, file.extents.back().size(), "file");
  }
  RequireRule(sum == file.size, "extents fill their file", in);
  return file;
}

// The name of a file or of an empty folder must not also be a parent folder of another name.
void CheckNames(const StateRecord& record) {
  std::vector<std::string_view> names(record.empty_folders.begin(), record.empty_folders.end());
  for (const StoredFile& file : record.files) names.push_back(file.name);
  if (FindNameClash(std::move(names))) {
    throw Error(Finding::kDuplicateName,
                "a name occurs twice, or a file is also the folder of another");
  }
}

}  // namespace

uint64_t Extent::size() const {
  if (kind == Kind::kLiteral) return literal.size();
  return kind == Kind::kOpaque ? bytes : tokens * row_bytes();
}

uint64_t Extent::BytesOf(const Piece& piece) const {
  return kind == Kind::kTensor ? CheckedMul(piece.count, row_bytes(), "object") : piece.count;
}

bool Extent::SamePart(const Extent& other) const {
  return kind == Kind::kTensor && other.kind == kind && layer == other.layer &&
         is_value == other.is_value && dtype == other.dtype && heads == other.heads &&
         units == other.units && token_begin == other.token_begin;
}

Bytes Encode(const StateRecord& record) {
  ByteWriter out;
  out.Append(kStateMagic);
  out.U32(kStateVersion);
  out.U32(0);
  out.U64(record.id);
  out.Write(record.added_us);
  Text(out, record.name);
  Text(out, record.format);
  Text(out, record.model);
  Text(out, record.geometry);
  for (const uint64_t value :
       {record.tokens, record.layers, record.source_bytes, record.source_hash, record.own_bytes}) {
    out.U64(value);
  }
  out.U8(static_cast<uint8_t>(record.level));
  out.Append(record.guide);
  out.U8(record.is_folder ? 1 : 0);
  out.U32(static_cast<uint32_t>(record.files.size()));
  for (const StoredFile& file : record.files) {
    Text(out, file.name);
    out.U64(file.size);
    out.U64(file.hash);
    out.U8(file.executable ? 1 : 0);
    out.U32(static_cast<uint32_t>(file.extents.size()));
    for (const Extent& extent : file.extents) Write(out, extent);
  }
  out.U32(static_cast<uint32_t>(record.empty_folders.size()));
  for (const std::string& name : record.empty_folders) Text(out, name);
  out.U64(Hash64(out.bytes()));
  return out.Release();
}

StateRecord DecodeState(ByteSpan bytes) {
  constexpr uint64_t kHashBytes = sizeof(uint64_t);
  ByteReader in(bytes);
  if (in.Text(kStateMagic.size(), "magic") != kStateMagic)
    throw Error(Finding::kBadMagic, "this is not a state of a store").At(0);
  const auto version = in.U32("version");
  if (version != kStateVersion) {
    throw Error(Finding::kUnsupportedVersion, "state of version {}, {} is supported", version,
                kStateVersion);
  }
  if (in.remaining() < kHashBytes)
    throw Error(Finding::kTruncated, "the state ends too early").At(in.offset());
  const ByteSpan hashed = bytes.first(bytes.size() - kHashBytes);
  if (LoadLE<uint64_t>(&bytes[hashed.size()]) != Hash64(hashed))
    throw Error(Finding::kChecksum, "state record: checksum mismatch").At(hashed.size());
  in = ByteReader(hashed.subspan(in.offset()), in.offset());
  RequireRule(in.U32("reserved") == 0, "the reserved field is 0", in);
  StateRecord record;
  record.id = in.U64("number");
  record.added_us = in.I64("time");
  record.name = TakeText(in, "name");
  if (!IsStateName(record.name))
    throw Error(Finding::kUnsafeName, "'{}' cannot name a state", record.name).At(in.offset());
  record.format = TakeText(in, "format");
  record.model = TakeText(in, "model");
  record.geometry = TakeText(in, "geometry");
  for (uint64_t* value : {&record.tokens, &record.layers, &record.source_bytes, &record.source_hash,
                          &record.own_bytes}) {
    *value = in.U64("numbers");
  }
  const uint8_t level = in.U8("level");
  RequireRule(level <= static_cast<uint8_t>(Effort::kMax), "the level is known", in);
  record.level = static_cast<Effort>(level);
  record.guide = TakeId(in);
  record.is_folder = TakeFlag(in, "folder");
  const uint32_t files = in.U32("files");
  RequireRule(record.is_folder || files == 1, "it is a folder or one file", in);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < files; ++i) {
    record.files.push_back(ReadFile(in, record.is_folder));
    sum = CheckedAdd(sum, record.files.back().size, "state");
    if (i > 0 && record.files[i - 1].name >= record.files[i].name)
      throw Error(Finding::kDuplicateName, "the files of the state are not sorted by name")
          .At(in.offset());
  }
  RequireRule(sum == record.source_bytes, "files add up to the state", in);
  const uint32_t folders = in.U32("empty folders");
  RequireRule(record.is_folder || folders == 0, "only folders hold empty folders", in);
  for (uint32_t i = 0; i < folders; ++i) {
    record.empty_folders.push_back(TakeText(in, "name of a folder"));
    if (!IsSafeRelativePath(record.empty_folders.back()))
      throw Error(Finding::kUnsafeName, "an empty folder of the state has an unsafe name")
          .At(in.offset());
  }
  in.ExpectEnd("state");
  CheckNames(record);
  return record;
}

bool IsStateName(std::string_view name) {
  if (name.empty() || name.size() > 200 || name.front() == '@' || name == "." || name == "..")
    return false;
  if (!IsUtf8(name)) return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  });
}

namespace {

// Gaps of up to this size, such as row headers between tensors, are kept in the record.
constexpr uint64_t kMostOfLiteral = 128;
constexpr uint64_t kOpaqueBytes = 1 << 20, kMostOfPiece = 8 << 20;
constexpr uint64_t kGuideTokens = 16;

struct Steps {
  uint64_t token, head, unit;
};

Steps StepsIn(const Extent& extent, Order order) {
  const uint64_t unit = Info(extent.dtype).block_bytes, inner = extent.units * unit;
  switch (order) {
    case Order::kHeadTokenDim:
      return {inner, extent.tokens * inner, unit};
    case Order::kHeadDimToken:
      return {unit, extent.tokens * inner, extent.tokens * unit};
    default:
      return {extent.heads * inner, inner, unit};
  }
}

void Opaque(uint64_t bytes, DType dtype, std::vector<Extent>& extents) {
  if (bytes == 0) return;
  Extent extent;
  extent.kind = Extent::Kind::kOpaque;
  extent.dtype =
      IsBlockQuantised(dtype) || bytes % Info(dtype).block_bytes != 0 ? DType::kU8 : dtype;
  extent.bytes = bytes;
  extents.push_back(std::move(extent));
}

void Gap(ByteSpan bytes, std::vector<Extent>& extents) {
  if (bytes.size() > kMostOfLiteral) return Opaque(bytes.size(), DType::kU8, extents);
  if (bytes.empty()) return;
  Extent extent;
  extent.literal.assign(bytes.begin(), bytes.end());
  extents.push_back(std::move(extent));
}

void Tensor(const Region& region, std::vector<Extent>& extents) {
  Extent extent;
  extent.kind = Extent::Kind::kTensor;
  extent.dtype = region.dtype;
  extent.layer = region.layer;
  extent.is_value = region.is_value;
  extent.order = region.order;
  extent.token_begin = region.token_begin;
  extent.tokens = region.tokens;
  extent.heads = region.heads;
  extent.units = region.head_dim / Info(region.dtype).block_elements;
  const bool is_huge = extent.row_bytes() > kMostOfPiece ||
                       (region.order != Order::kTokenHeadDim && region.size > kMostOfTensor);
  if (region.order == Order::kStorage || is_huge) return Opaque(region.size, region.dtype, extents);
  KV_ASSERT(extent.size() == region.size);
  if (region.size > 0) extents.push_back(std::move(extent));
}

uint64_t BlockTokens(const Extent& extent, uint64_t block_tokens) {
  return std::clamp<uint64_t>(block_tokens, 1,
                              std::max<uint64_t>(1, kMostOfPiece / extent.row_bytes()));
}

}  // namespace

std::vector<StoredFile> CutIntoExtents(const Source& source, const Snapshot* snapshot) {
  std::vector<Region> regions;
  if (snapshot != nullptr) regions = FindRegions(*snapshot);
  std::vector<StoredFile> files;
  size_t next = 0;
  for (size_t i = 0; i < source.files.size(); ++i) {
    const SourceFile& from = source.files[i];
    StoredFile file;
    if (source.is_folder) file.name = from.name;
    file.size = from.data->size();
    file.executable = from.executable;
    const ByteSpan bytes = from.data->bytes();
    uint64_t position = 0;
    for (; next < regions.size() && regions[next].file == i; ++next) {
      const Region& region = regions[next];
      Gap(bytes.subspan(position, region.offset - position), file.extents);
      Tensor(region, file.extents);
      position = region.offset + region.size;
    }
    Gap(bytes.subspan(position), file.extents);
    files.push_back(std::move(file));
  }
  return files;
}

void GatherRows(const Extent& extent, ByteSpan bytes, uint64_t begin, uint64_t count,
                std::span<std::byte> rows) {
  const Steps from = StepsIn(extent, extent.order), to = StepsIn(extent, Order::kTokenHeadDim);
  const std::byte* first = bytes.data() + begin * from.token;
  if (extent.in_order()) {
    std::memcpy(rows.data(), first, rows.size());
    return;
  }
  for (uint32_t head = 0; head < extent.heads; ++head) {
    CopyStrided2D(first + head * from.head, from.token, from.unit, rows.data() + head * to.head,
                  to.token, to.unit, count, extent.units, Info(extent.dtype).block_bytes);
  }
}

void ScatterRows(const Extent& extent, ByteSpan rows, uint64_t begin, uint64_t count,
                 std::span<std::byte> bytes) {
  const Steps to = StepsIn(extent, extent.order), from = StepsIn(extent, Order::kTokenHeadDim);
  std::byte* first = bytes.data() + begin * to.token;
  for (uint32_t head = 0; head < extent.heads; ++head) {
    CopyStrided2D(rows.data() + head * from.head, from.token, from.unit, first + head * to.head,
                  to.token, to.unit, count, extent.units, Info(extent.dtype).block_bytes);
  }
}

uint64_t EndOfPiece(const Extent& extent, uint64_t begin, uint64_t block_tokens) {
  if (extent.kind == Extent::Kind::kOpaque) {
    return std::min(begin + kOpaqueBytes, extent.bytes);
  }
  const uint64_t block = BlockTokens(extent, block_tokens);
  const uint64_t least = std::min(kShortTokens, (block + 1) / 2);
  const uint64_t end = RoundUp(begin + least, block);
  return end + least > extent.tokens ? extent.tokens : end;
}

bool IsWorthKeeping(const Extent& extent, uint64_t begin, uint64_t count, uint64_t block_tokens) {
  const uint64_t block = BlockTokens(extent, block_tokens), end = begin + count;
  return count >= std::min(kShortTokens, (block + 1) / 2) || end == extent.tokens ||
         end % block == 0;
}

Guide FindGuide(const Source& source, const std::vector<StoredFile>& files) {
  Guide guide;
  ByteSpan bytes;
  for (size_t i = 0; i < files.size(); ++i) {
    uint64_t offset = 0;
    for (const Extent& extent : files[i].extents) {
      if (extent.kind == Extent::Kind::kTensor && extent.tokens >= kGuideTokens) {
        guide = {&files[i], &extent, offset, {}};
        bytes = source.files[i].data->bytes();
      }
      offset += extent.size();
    }
  }
  if (guide.extent == nullptr) return guide;
  const Extent& extent = *guide.extent;
  Bytes rows(kGuideTokens * extent.row_bytes());
  GatherRows(extent, bytes.subspan(guide.offset, extent.size()), 0, kGuideTokens, rows);
  guide.id = Blake2b256(rows);
  return guide;
}

}  // namespace kv::store
