// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/chunk.h"

// f32 as what it is made of: halves where every value is one, else its upper half, a bf16, and the
// planes of the lower. FORMAT.md in this folder is the grammar.
namespace kv {

// Halves are coded by `encode`, which may use all of `scratch` but `halves` and `rows`.
template <class Encode>
EncodedChunk EncodeWide(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch,
                        const Encode& encode);
// Throws as DecodeChunk.
void DecodeWide(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch);

// Whether every float is a bf16.
bool IsAllBf16(ByteSpan raw);
// Whether every float is an f16; then `halves` are those.
bool NarrowToHalf(ByteSpan raw, std::span<std::byte> halves);
// The upper halves, and the frames of the two lower byte planes.
void TakeUpperHalves(ByteSpan raw, std::span<std::byte> halves);
PlaneChoices AppendLowerPlanes(ByteSpan raw, CodecScratch& scratch, Bytes& out);

template <class Encode>
EncodedChunk EncodeWide(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch,
                        const Encode& encode) {
  const std::span<std::byte> halves = scratch.halves.Get(raw.size() / 2).first(raw.size() / 2);
  ChunkShape inner_shape = shape;
  const bool exact = !IsAllBf16(raw) && NarrowToHalf(raw, halves);
  inner_shape.dtype = exact ? DType::kF16 : DType::kBF16;
  if (!exact) TakeUpperHalves(raw, halves);
  EncodedChunk inner = encode(inner_shape, ByteSpan(halves));
  ByteWriter header;
  header.U8(exact ? 1 : 2);
  header.U8(static_cast<uint8_t>(inner.codec));
  header.U16(0);
  header.U32(static_cast<uint32_t>(inner.payload.size()));
  header.Append(inner.payload);
  EncodedChunk chunk{CodecId::kWidened, header.Release(), std::move(inner.planes)};
  if (exact) return chunk;
  for (const PlaneChoice& plane : AppendLowerPlanes(raw, scratch, chunk.payload))
    chunk.planes.push_back(plane);
  return chunk;
}

}  // namespace kv
