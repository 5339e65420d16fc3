// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/gear/gear_container.h"

// Block-quantised rows (q8_0 ...) as planes: each field of the block struct is a plane of its own,
// each scale two byte planes, and each plane one zstd frame. formats/gear/FORMAT.md is the grammar.
namespace kv {

// Returns whether the dtype has a block struct that EncodeBlockPlanes knows.
bool HasBlockPlanes(DType dtype);

// How planes become frames: by matches, as the engine has it; as literals, since quantised values
// hardly have matches, and it is done sooner; as the smaller of both, in all planes or in those of
// scales and high bits, which are a small part of the bytes.
enum class BlockFrames { kMatches, kLiterals, kSmallerNarrow, kSmaller };

// `raw` must be one or more whole blocks. The plane of the quants is the last one.
PlaneChoices EncodeBlockPlanes(DType dtype, ByteSpan raw, BlockFrames frames, CodecScratch& scratch,
                               Bytes& out);
// Throws kBadFrame, kTruncated, kTrailingBytes, kBadPayload.
void DecodeBlockPlanes(DType dtype, ByteSpan payload, std::span<std::byte> raw,
                       CodecScratch& scratch);

}  // namespace kv
