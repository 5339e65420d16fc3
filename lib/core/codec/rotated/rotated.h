// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/chunk.h"

// Half floats whose words are rotated left by one bit before they are split into planes, so that
// one plane of bf16 holds whole exponents. FORMAT.md in this folder is the grammar.
namespace kv {

// False unless `raw` is a positive number of words. The planes hold literals, not matches.
bool EncodeRotated(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat, CodecScratch& scratch,
                   EncodedChunk& out);
// Throws as DecodeGear.
void DecodeRotated(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                   CodecScratch& scratch);

}  // namespace kv
