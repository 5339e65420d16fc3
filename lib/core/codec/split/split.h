// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/chunk.h"

// Codes the two halves of every head apart, for pages in which K and V lie side by side there: one
// has patterns that the other has not. FORMAT.md in this folder is the grammar.
namespace kv {

inline constexpr auto kSplitCodec = static_cast<CodecId>(24);

// Whether heads can be halved: the shape explains the bytes, and a head has an even number of
// units.
bool CanSplit(const ChunkShape& shape, uint64_t raw_bytes);
// The result may be longer than `raw`, which must be such a chunk.
EncodedChunk EncodeSplit(const ChunkShape& shape, ByteSpan raw, Effort effort,
                         CodecScratch& scratch);
// Throws as DecodeChunk.
void DecodeSplit(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch);

}  // namespace kv
