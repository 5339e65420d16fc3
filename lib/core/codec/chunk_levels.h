// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/chunk.h"

// How EncodeChunk chooses; for lib/core/codec alone.
namespace kv {

// A chunk as rows of units, one below another where the token before has the same channels. One
// row where the shape does not say.
struct ChunkGrid {
  uint64_t rows = 1, columns = 0;
};
ChunkGrid GridOf(const ChunkShape& shape, uint64_t raw_bytes);
// The model's head dimension; 0 if it is not known.
uint64_t HeadDim(const ChunkShape& shape);

// The engine's way: exhaustive, all bytes as its container. May be longer than `raw`.
EncodedChunk EncodeCompat(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch);
// The levels above it. May be longer than `raw`.
EncodedChunk EncodeByCost(const ChunkShape& shape, ByteSpan raw, Effort effort,
                          CodecScratch& scratch);

}  // namespace kv
