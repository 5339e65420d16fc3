// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/chunk.h"

// How EncodeChunk chooses a codec. Internal to lib/core/codec. chunk.cc implements GridOf, HeadDim
// and EncodeCompat, chunk_levels.cc the rest.
namespace kv {

// A chunk as rows of units, in which each unit stands below the same channel of the token before.
// If the shape does not explain the bytes, they are one row.
struct ChunkGrid {
  uint64_t rows = 1, columns = 0;
};
ChunkGrid GridOf(const ChunkShape& shape, uint64_t raw_bytes);
// The model's head dimension; 0 if it is not known.
uint64_t HeadDim(const ChunkShape& shape);

// Encodes as the engine does: searches exhaustively and writes all bytes as the engine's container.
// The result may be longer than `raw`.
EncodedChunk EncodeCompat(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch);
// Encodes at the levels above kCompat. The result may be longer than `raw`.
EncodedChunk EncodeByCost(const ChunkShape& shape, ByteSpan raw, Effort effort,
                          CodecScratch& scratch);

}  // namespace kv
