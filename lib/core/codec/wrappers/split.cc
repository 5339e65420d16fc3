// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include <algorithm>

#include "lib/core/codec/wrappers/wrappers.h"

namespace kv {
namespace {

uint64_t HalfOfHead(const ChunkShape& shape) {
  return shape.units_per_head / 2 * Info(shape.dtype).block_bytes;
}

ChunkShape SideShape(const ChunkShape& shape) {
  ChunkShape side = shape;
  side.units_per_head /= 2;
  return side;
}

}  // namespace

bool CanSplit(const ChunkShape& shape, uint64_t raw_bytes) {
  if (shape.order != Order::kTokenHeadDim && shape.order != Order::kHeadTokenDim) return false;
  if (shape.units_per_head == 0 || shape.units_per_head % 2 != 0 || raw_bytes == 0) return false;
  uint64_t vectors, units, bytes;
  return !__builtin_mul_overflow(shape.tokens, uint64_t{shape.heads}, &vectors) &&
         !__builtin_mul_overflow(vectors, shape.units_per_head, &units) &&
         !__builtin_mul_overflow(units, uint64_t{Info(shape.dtype).block_bytes}, &bytes) &&
         bytes == raw_bytes;
}

EncodedChunk EncodeSplit(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch,
                         const InnerEncoder& encode) {
  KV_ASSERT(CanSplit(shape, raw.size()));
  const uint64_t half = HalfOfHead(shape);
  // Split chunks cannot be nested, so the encoder of a half does not use this buffer.
  const std::span<std::byte> side = scratch.sides.Get(raw.size() / 2).first(raw.size() / 2);
  EncodedChunk chunk{CodecId::kSplit, scratch.NewPayload(), {}};
  std::byte header[8] = {};
  for (size_t which = 0; which < 2; ++which) {
    std::byte* to = side.data();
    for (const std::byte* from = raw.data() + which * half; from < raw.data() + raw.size();
         from += 2 * half, to += half) {
      std::copy_n(from, half, to);
    }
    EncodedChunk coded = encode(SideShape(shape), side);
    header[which] = static_cast<std::byte>(coded.codec);
    if (which == 0) {
      StoreLE(header + 4, static_cast<uint32_t>(coded.payload.size()));
      chunk.payload.reserve(sizeof header + 2 * coded.payload.size());
      chunk.payload.resize(sizeof header);
    }
    chunk.payload.insert(chunk.payload.end(), coded.payload.begin(), coded.payload.end());
    chunk.planes.insert(chunk.planes.end(), coded.planes.begin(), coded.planes.end());
    scratch.Recycle(std::move(coded.payload));
  }
  std::copy(header, header + sizeof header, chunk.payload.begin());
  return chunk;
}

void DecodeSplit(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch, const ChunkInputs& inputs, InnerDecoder inner) {
  if (!CanSplit(shape, raw.size())) {
    throw Error(Finding::kBadFrame, "the heads cannot be halved");
  }
  ByteReader reader(payload);
  const auto first = static_cast<CodecId>(reader.U8("codec of the first halves"));
  const auto second = static_cast<CodecId>(reader.U8("codec of the second halves"));
  const uint32_t reserved = reader.U16("reserved field");
  const uint32_t first_bytes = reader.U32("length of the first halves");
  if (!MayBeInside(first) || !MayBeInside(second) || reserved != 0) {
    throw Error(Finding::kBadFrame, "halves cannot be coded by codecs {} and {}",
                static_cast<unsigned>(first), static_cast<unsigned>(second))
        .At(0);
  }
  const uint64_t half = HalfOfHead(shape);
  const std::span<std::byte> side = scratch.sides.Get(raw.size() / 2).first(raw.size() / 2);
  const ByteSpan coded[2] = {reader.Take(first_bytes, "first halves"), reader.rest()};
  for (size_t which = 0; which < 2; ++which) {
    inner(which == 0 ? first : second, SideShape(shape), coded[which], side, scratch, inputs);
    const std::byte* from = side.data();
    for (std::byte* to = raw.data() + which * half; to < raw.data() + raw.size();
         to += 2 * half, from += half) {
      std::copy_n(from, half, to);
    }
  }
}

}  // namespace kv
