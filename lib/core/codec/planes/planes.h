// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by zstd_planes.cc, window4.cc

#include <optional>
#include <span>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/planes/gear.h"

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

// Codes bf16 values with their exponents in four bits, at nearly the speed of copying.
// FORMAT.md in this folder is the grammar.

// The window that leaves the fewest values of a sample outside. Compares its cost with that of
// coding exponents by their entropy; both costs are bits per 4096 values.
struct WindowPlan {
  uint32_t base = 0;
  uint64_t window_bits = 0, entropy_bits = 0;
};
WindowPlan PlanWindow(ByteSpan values);
// Appends the frame to `out`.
void EncodeWindow(ByteSpan values, uint32_t base, CodecScratch& scratch, Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeWindow(ByteSpan frame, std::span<std::byte> values);

}  // namespace kv
