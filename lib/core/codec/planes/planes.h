// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by zstd_planes.cc, window4.cc, blocks.cc

#include <optional>
#include <span>
#include <vector>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/planes/gear.h"

// Codecs of byte planes other than gear. Block-quantised rows (q8_0 ...): each field of the block
// struct is a plane, each half-precision scale two byte planes, and each plane one zstd frame;
// formats/gear/FORMAT.md is the grammar.
namespace kv {

// Returns true if the dtype has a block struct that EncodeBlockPlanes knows.
bool HasBlockPlanes(DType dtype);

// The form of the planes' zstd frames: with matches, as in the engine; literals, which are faster
// and suit quantised values, whose matches are rare; or the smaller of both, in all planes or only
// in the planes of scales and high bits, which are a small part of the bytes.
enum class BlockFrames { kMatches, kLiterals, kSmallerNarrow, kSmaller };

// `raw` must be one or more whole blocks. The last plane is that of the quants.
PlaneChoices EncodeBlockPlanes(DType dtype, ByteSpan raw, BlockFrames frames, CodecScratch& scratch,
                               Bytes& out);
// Throws kBadFrame, kTruncated, kTrailingBytes, kBadPayload.
void DecodeBlockPlanes(DType dtype, ByteSpan payload, std::span<std::byte> raw,
                       CodecScratch& scratch);

// Codes bf16 values with their exponents in four bits, at nearly the speed of copying. FORMAT.md in
// this folder is the grammar.

// The window that leaves the fewest sampled values outside, with its cost and the cost of coding
// exponents at their entropy. Both are bits per 4096 values.
struct WindowPlan {
  uint32_t base = 0;
  uint64_t window_bits = 0, entropy_bits = 0;
};
WindowPlan PlanWindow(ByteSpan values);
// Appends the frame to `out`.
void EncodeWindow(ByteSpan values, uint32_t base, CodecScratch& scratch, Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeWindow(ByteSpan frame, std::span<std::byte> values);

// Byte planes in independent blocks, for decoders on a device: each block is an ordinary zstd
// frame, or its bytes if they do not shrink. FORMAT.md in this folder is the grammar.

inline constexpr uint32_t kPlaneBlockBytes = 64 << 10;  // raw bytes of a block
inline constexpr uint32_t kPlaneBlockAlignment = 16;    // alignment of blocks in the payload
inline constexpr uint64_t kMaxBlockedBytes = uint64_t{1} << 30;
// a zstd_level that uses byte statistics and searches no matches
inline constexpr int kOnlyLiterals = 0;

struct PlaneBlock {
  uint32_t offset = 0, bytes = 0;  // place in the payload
  uint32_t raw_bytes = 0;          // equals `bytes` if the block is stored uncompressed

  bool stored() const { return bytes == raw_bytes; }
};
struct PlaneBlocks {
  WordPlanes split;
  std::vector<PlaneBlock> blocks;  // blocks of plane 0, then those of plane 1 ...
};

// Writes the payload of 1 to kMaxBlockedBytes raw bytes to `out`, which must be empty.
void EncodeBlocks(DType dtype, ByteSpan raw, int zstd_level, CodecScratch& scratch, Bytes& out);
// Reads the block table of a payload that decodes to `raw_bytes`, and checks it against the
// payload's size and the blocks' headers. Throws kBadFrame, kBadPayload, kTruncated,
// kTrailingBytes.
PlaneBlocks ReadBlocks(DType dtype, ByteSpan payload, uint64_t raw_bytes);
// Throws what ReadBlocks throws.
void DecodeBlocks(DType dtype, ByteSpan payload, std::span<std::byte> raw, CodecScratch& scratch);

}  // namespace kv
