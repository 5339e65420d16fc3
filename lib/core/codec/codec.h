// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/planes/gear.h"
#include "lib/core/codec/rotation.h"
#include "lib/core/kernels/symbols.h"

// What codecs share: a chunk is one piece of a tensor, compressed on its own, and archives are made
// of chunks. Codecs lie in families (folders), below the table and the chooser of chunk.h.
namespace kv {

// The ids are stored in .kvz archives and never reused. A codec's row in table.cc tells the rest.
enum class CodecId : uint8_t {
  kRaw = 0,         // the bytes as they are
  kGear16 = 1,      // the engine's container of two planes: f16 and bf16
  kGear32 = 2,      // the engine's container of four planes: f32
  kZstdPlanes = 3,  // one zstd frame per field of a block struct: q8_0, q4_0 ...
  kZstd = 4,        // one zstd frame: everything else
  // kvtool's own codecs. The FORMAT.md of a family has their grammars.
  kPrev = 16,       // f16, bf16: sign and exponent, coded in the context of the row above
  kRotated16 = 17,  // gear-f16 of words rotated left by one bit, so that planes hold exponents
  kRows = 18,       // repeated rows stored once, in any codec but this one
  kLms = 19,        // f16, bf16: sign and exponent, coded in the context of a learned prediction
  kWindow4 = 20,    // bf16: exponents in four bits, those outside the window escaped
  kWidened = 21,    // f32 stored as f16, or as bf16 and the lower bytes
  kCdf = 22,        // f16, bf16: whole values, coded under learned distributions
  kLike = 23,       // as kLms, with rows also predicted from earlier rows that they resemble
  kSplit = 24,      // the halves of every head, each in any codec but this one
  kRef = 25,        // rows by those of another cache, which decoding needs
  kRefCdf = 26,     // as kRef, with differences coded under learned distributions
  kLayers = 27,     // as kCdf, with rows also expected from other chunks of the archive
  kProfiled = 28,   // as kPrev, with the tables of a profile, which decoding needs
  kRefLayers = 29,  // as kRefCdf, with differences also expected from other chunks of the archive
  kRefSparse = 30,  // as kRef, with a list of the values that differ
  kBlocks = 31,     // byte planes in blocks, which decoders on a device take as they are
};
// Returns whether chunks of the codec may be inside of others, as the grammars say: a split chunk
// may not, nor one that needs references or neighbours.
constexpr bool MayBeInside(CodecId codec) {
  return (codec < CodecId::kSplit || codec > CodecId::kLayers) && codec != CodecId::kRefLayers &&
         codec != CodecId::kRefSparse;
}

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
  uint32_t byte_shift = 0;  // of f16 that stand for 8-bit floats (HalfForm)
};
// Returns what stands in the halves of a chunk.
inline HalfForm FormOf(const ChunkShape& shape) {
  return {shape.dtype == DType::kBF16, shape.byte_shift};
}

struct EncodedChunk {
  CodecId codec = CodecId::kRaw;
  Bytes payload;
  PlaneChoices planes;  // empty for kRaw and kZstd
  // Levels above kFast: values come back, which in another order they may do even more.
  bool by_matches = false;
};

// A chunk as rows of units, in which each unit stands below the same channel of the token before.
// If the shape does not explain the bytes, they are one row.
struct ChunkGrid {
  uint64_t rows = 1, columns = 0;
};
ChunkGrid GridOf(const ChunkShape& shape, uint64_t raw_bytes);
// Returns the model's head dimension; 0 if it is not known.
uint64_t HeadDim(const ChunkShape& shape);

class NeighbourSource;  // cdf/layers.h
class Profile;          // profiled/profile.h
class ReferenceRows;    // ref/ref.h

// What decoding reads beside the payload. The row of a codec says which of these it needs.
struct ChunkInputs {
  RowSteps steps = {};  // positions of the chunk's rows
  const ReferenceRows* references = nullptr;
  const NeighbourSource* neighbours = nullptr;
  const Profile* profile = nullptr;
  // The caller compares a hash of all rows: those that are copied from references need none of
  // their own.
  bool content_is_checked = false;
};

// Encodes a chunk inside of another one. Whoever chooses codecs hands it in.
using InnerEncoder = std::function<EncodedChunk(const ChunkShape& shape, ByteSpan raw)>;

// Decodes a chunk inside of another one: DecodeChunk (chunk.h), handed in.
using InnerDecoder = void (*)(CodecId codec, const ChunkShape& shape, ByteSpan payload,
                              std::span<std::byte> raw, CodecScratch& scratch,
                              const ChunkInputs& inputs);

}  // namespace kv
