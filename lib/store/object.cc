// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/store/object.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/core/base/checked.h"
#include "lib/core/base/hash.h"

namespace kv::store {
namespace {

constexpr std::string_view kPackMagic("\x89KVP\r\n\x1a\n", 8), kObjectMagic("KVPo", 4);
constexpr uint32_t kVersion = 1;
constexpr uint64_t kHashedBytes = kObjectHeadBytes - 8;

void Require(bool holds, std::string_view rule, uint64_t at) {
  if (!holds) throw Error(Finding::kBadField, "object: not so: {}", rule).At(at);
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
    throw Error(Finding::kBadMagic, "this is no pack of a store").At(0);
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
  if (offset > pack.size()) throw Error(Finding::kTruncated, "the pack ends before").At(offset);
  ByteReader in(pack.bytes().subspan(offset), offset);
  const ByteSpan bytes = in.Take(kObjectHeadBytes, "head of an object");
  ByteReader fields(bytes, offset);
  if (fields.Text(kObjectMagic.size(), "magic") != kObjectMagic)
    throw Error(Finding::kBadMagic, "no object begins here").At(offset);
  if (LoadLE<uint64_t>(&bytes[kHashedBytes]) != Hash64(bytes.first(kHashedBytes)))
    throw Error(Finding::kChecksum, "the head of an object does not have its hash").At(offset);
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
  Require(head.payload_bytes <= head.raw_bytes, "the payload is no larger than what it stands for",
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
    throw Error(Finding::kChecksum, "the payload of an object does not have its hash").At(offset);
}

void DecodeObject(const FileSource& pack, uint64_t offset, const ObjectHead& head,
                  CodecScratch& scratch, Bytes& raw) {
  CheckPayload(pack, offset, head);
  if (NeedsOthers(head.codec))
    throw Error(Finding::kBadField, "an object needs nothing beside itself").At(offset);
  raw.resize(head.raw_bytes);
  DecodeChunk(head.codec, head.shape, TakePayload(pack, offset, head), raw, scratch);
  if (Hash64(raw) != head.raw_hash)
    throw Error(Finding::kChecksum, "an object does not decode to what was added").At(offset);
}

}  // namespace kv::store
