// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "lib/core/base/dtype.h"
#include "lib/core/base/order.h"
#include "lib/core/codec/gear/gear_container.h"

// One piece of a tensor, compressed on its own: what archives are made of.
namespace kv {

// The ids are stored in .kvz archives and never reused.
enum class CodecId : uint8_t {
  kRaw = 0,         // the bytes as they are
  kGear16 = 1,      // the engine's container of two planes: f16 and bf16
  kGear32 = 2,      // the engine's container of four planes: f32
  kZstdPlanes = 3,  // one zstd frame per field of a block struct: q8_0, q4_0 ...
  kZstd = 4,        // one zstd frame: everything else
  // kvtool's own; lib/core/archive/FORMAT.md is their grammar.
  kPrev = 16,       // f16, bf16: sign and exponent in the context of the row above
  kRotated16 = 17,  // gear-f16 of words rotated left by one: exponent and mantissa apart
  kRows = 18,       // rows that come back stored once, in any codec but this
  kLms = 19,        // f16, bf16: in the context of a learned prediction
  kWindow4 = 20,    // bf16: exponents in four bits, others escaped
  kWidened = 21,    // f32 as f16, or as bf16 and the rest
  kCdf = 22,        // f16, bf16: whole values under learned distributions
  kLike = 23,       // lms, and rows in the context of others that they resemble
};
// "raw", "gear-f16" ...; empty for an id that does not exist.
std::string_view Name(CodecId codec);

// How much time to spend. kCompat is the engine's exhaustive choice, byte for byte; the others
// choose by cost, each among what the ones before it have.
enum class Effort : uint8_t { kCompat, kFast, kDefault, kHigh, kMax };
std::string_view Name(Effort effort);
std::optional<Effort> ParseEffort(std::string_view name);

// What the bytes of a chunk are.
struct ChunkShape {
  DType dtype = DType::kF16;
  uint64_t tokens = 0;
  uint32_t heads = 0;
  uint64_t units_per_head = 0;  // elements, or blocks for block-quantised types
  Order order = Order::kTokenHeadDim;
};

struct EncodedChunk {
  CodecId codec = CodecId::kRaw;
  Bytes payload;
  PlaneChoices planes;  // empty for kRaw and kZstd
};

// Never fails for a reason of content: what would not shrink is kRaw. At kCompat the codec follows
// from the dtype; bytes that are not whole words or blocks of it go to kZstd.
EncodedChunk EncodeChunk(const ChunkShape& shape, ByteSpan raw, Effort effort,
                         CodecScratch& scratch);

// Fills `raw`, whose size the caller knows and has justified; allocates only what is in
// proportion to it. Throws kBadFrame, kBadPayload and, for damaged structure, kTruncated or
// kTrailingBytes.
void DecodeChunk(CodecId codec, const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch);

}  // namespace kv
