// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/gear/gear_container.h"

// A chunk is one piece of a tensor, compressed on its own. Archives are made of chunks.
namespace kv {

// The ids are stored in .kvz archives and never reused. table.h tells the rest about each codec; a
// codec that no code names needs no constant here.
enum class CodecId : uint8_t {
  kRaw = 0,         // the bytes as they are
  kGear16 = 1,      // the engine's container of two planes: f16 and bf16
  kGear32 = 2,      // the engine's container of four planes: f32
  kZstdPlanes = 3,  // one zstd frame per field of a block struct: q8_0, q4_0 ...
  kZstd = 4,        // one zstd frame: everything else
  // kvtool's own codecs. Each has a folder with its grammar.
  kPrev = 16,       // f16, bf16: sign and exponent, coded in the context of the row above
  kRotated16 = 17,  // gear-f16 of words rotated left by one bit, so that planes hold exponents
  kRows = 18,       // repeated rows stored once, in any codec but this one
  kLms = 19,        // f16, bf16: sign and exponent, coded in the context of a learned prediction
  kWindow4 = 20,    // bf16: exponents in four bits, those outside the window escaped
  kWidened = 21,    // f32 stored as f16, or as bf16 and the lower bytes
  kCdf = 22,        // f16, bf16: whole values, coded under learned distributions
  kLike = 23,       // as kLms, with rows also predicted from earlier rows that they resemble
  kRef = 25,        // rows by those of another cache, which decoding needs
  kRefCdf = 26,     // as kRef, with differences coded under learned distributions
  kLayers = 27,     // as kCdf, with rows also expected from other chunks of the archive
  kProfiled = 28,   // as kPrev, with the tables of a profile, which decoding needs
  kRefLayers = 29,  // as kRefCdf, with differences also expected from other chunks of the archive
  kRefSparse = 30,  // as kRef, with a list of the values that differ
};
// Whether chunks need rows of another cache.
constexpr bool HasReferences(CodecId codec) {
  return codec == CodecId::kRef || codec == CodecId::kRefCdf || codec == CodecId::kRefLayers ||
         codec == CodecId::kRefSparse;
}
// Whether chunks need other chunks of their archive.
constexpr bool HasNeighbours(CodecId codec) {
  return codec == CodecId::kLayers || codec == CodecId::kRefLayers;
}
// Whether chunks need any others: such codecs are not inside of others.
constexpr bool NeedsOthers(CodecId codec) { return HasReferences(codec) || HasNeighbours(codec); }
// Returns "raw", "gear-f16" ..., or an empty text if no codec has the id.
std::string_view Name(CodecId codec);

// How much time to spend. kCompat writes the bytes that the engine's exhaustive search writes. The
// other levels choose by cost; each may use every codec of the levels before it.
enum class Effort : uint8_t { kCompat, kFast, kDefault, kHigh, kMax };
std::string_view Name(Effort effort);
std::optional<Effort> ParseEffort(std::string_view name);

// Describes the bytes of a chunk.
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
  // Levels above kFast: values come back, which in another order they may do even more.
  bool by_matches = false;
};

// Encodes any content; stores raw bytes (kRaw) if coding does not shrink them. At kCompat the codec
// follows from the dtype; bytes that are not whole words or blocks of that type go to kZstd.
EncodedChunk EncodeChunk(const ChunkShape& shape, ByteSpan raw, Effort effort,
                         CodecScratch& scratch);

// Fills `raw`. The caller must have good reason for its size, because memory is allocated in
// proportion to it and to nothing else. Throws kBadFrame, kBadPayload and, if the structure is
// damaged, kTruncated or kTrailingBytes.
void DecodeChunk(CodecId codec, const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch);

}  // namespace kv
