// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/chunk.h"

// Stores f32 values as halves. If every value is an f16, the f16 values are all there is; otherwise
// the upper halves are bf16, and the lower bytes follow as planes. FORMAT.md in this folder is the
// grammar.
namespace kv {

// `encode` codes the halves. It may use all of `scratch` but `halves` and `rows`.
template <class Encode>
EncodedChunk EncodeWide(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch,
                        const Encode& encode);
// Throws as DecodeChunk.
void DecodeWide(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch);

// Returns whether every float is a bf16.
bool IsAllBf16(ByteSpan raw);
// Returns whether every float is an f16. If so, fills `halves` with them.
bool NarrowToHalf(ByteSpan raw, std::span<std::byte> halves);
// Copies the upper halves.
void TakeUpperHalves(ByteSpan raw, std::span<std::byte> halves);
// Appends the frames of the two lower byte planes.
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
  ByteWriter header(scratch.NewPayload());
  header.U8(exact ? 1 : 2);
  header.U8(static_cast<uint8_t>(inner.codec));
  header.U16(0);
  header.U32(static_cast<uint32_t>(inner.payload.size()));
  header.Append(inner.payload);
  scratch.Recycle(std::move(inner.payload));
  EncodedChunk chunk{CodecId::kWidened, header.Release(), std::move(inner.planes)};
  if (exact) return chunk;
  for (const PlaneChoice& plane : AppendLowerPlanes(raw, scratch, chunk.payload))
    chunk.planes.push_back(plane);
  return chunk;
}

}  // namespace kv
