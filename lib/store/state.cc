// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/store/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lib/core/base/checked.h"
#include "lib/core/base/file.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/utf8.h"

namespace kv::store {
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
    throw Error(Finding::kLimit, fmt::format("{}: {} bytes of text", field, size)).At(in.offset());
  return std::string(in.Text(size, field));
}

void RequireRule(bool holds, std::string_view rule, const ByteReader& in) {
  if (!holds)
    throw Error(Finding::kBadField, fmt::format("state: not so: {}", rule)).At(in.offset());
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
    RequireRule(piece.count != 0, "an object fills something", in);
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
    throw Error(Finding::kUnsafeName, fmt::format("'{}' is no name of a file", file.name));
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

// A name cannot be that of a file, or of an empty folder, and lead to others, too.
void CheckNames(const StateRecord& record) {
  std::vector<std::string_view> names(record.empty_folders.begin(), record.empty_folders.end());
  for (const StoredFile& file : record.files) names.push_back(file.name);
  if (FindNameClash(std::move(names))) {
    throw Error(Finding::kDuplicateName,
                "a name of the state comes twice, or a file is also the folder of another");
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
    throw Error(Finding::kBadMagic, "this is no state of a store").At(0);
  const auto version = in.U32("version");
  if (version != kStateVersion) {
    throw Error(Finding::kUnsupportedVersion,
                fmt::format("state of version {}, {} is supported", version, kStateVersion));
  }
  if (in.remaining() < kHashBytes) throw Error(Finding::kTruncated, "the state has no end");
  const ByteSpan hashed = bytes.first(bytes.size() - kHashBytes);
  if (LoadLE<uint64_t>(&bytes[hashed.size()]) != Hash64(hashed))
    throw Error(Finding::kChecksum, "the record of the state does not have its hash");
  in = ByteReader(hashed.subspan(in.offset()), in.offset());
  RequireRule(in.U32("reserved") == 0, "the reserved field is 0", in);
  StateRecord record;
  record.id = in.U64("number");
  record.added_us = in.I64("time");
  record.name = TakeText(in, "name");
  if (!IsStateName(record.name))
    throw Error(Finding::kUnsafeName, fmt::format("'{}' is no name of a state", record.name));
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
      throw Error(Finding::kDuplicateName, "the files of the state are not sorted by name");
  }
  RequireRule(sum == record.source_bytes, "files add up to the state", in);
  const uint32_t folders = in.U32("empty folders");
  RequireRule(record.is_folder || folders == 0, "only folders hold empty folders", in);
  for (uint32_t i = 0; i < folders; ++i) {
    record.empty_folders.push_back(TakeText(in, "name of a folder"));
    if (!IsSafeRelativePath(record.empty_folders.back()))
      throw Error(Finding::kUnsafeName, "an empty folder of the state has no safe name");
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

}  // namespace kv::store
