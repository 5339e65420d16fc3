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

// Types that all codecs share. A chunk is one piece of a tensor, compressed on its own; archives
// consist of chunks. Codecs live in one folder per family, below the table and the chooser of
// chunk.h.
namespace kv {

// The ids are stored in .kvz archives and never reused. table.cc has the properties of each codec.
enum class CodecId : uint8_t {
  kRaw = 0,         // the bytes as they are
  kGear16 = 1,      // the engine's container of two planes: f16 and bf16
  kGear32 = 2,      // the engine's container of four planes: f32
  kZstdPlanes = 3,  // one zstd frame per field of a block struct: q8_0, q4_0 ...
  kZstd = 4,        // one zstd frame: everything else
  // kvtool's own codecs; the FORMAT.md of each family has their grammar.
  kPrev = 16,         // f16, bf16: sign and exponent, coded in the context of the row above
  kRotated16 = 17,    // gear-f16 of words rotated left by one bit, so that planes hold exponents
  kRows = 18,         // stores repeated rows once; the distinct rows use any codec but this one
  kLms = 19,          // f16, bf16: sign and exponent, coded in the context of a learned prediction
  kWindow4 = 20,      // bf16: exponents in four bits, with escapes for those outside a window
  kWidened = 21,      // f32, stored as f16 if that is exact, otherwise as bf16 and the lower bytes
  kCdf = 22,          // f16, bf16: whole values, coded under learned distributions
  kLike = 23,         // kLms, with rows also predicted from earlier similar rows
  kSplit = 24,        // the two halves of every head, each in any codec but this one
  kRef = 25,          // rows predicted from a reference, another cache that decoding needs
  kRefCdf = 26,       // kRef, with the differences coded under learned distributions
  kLayers = 27,       // kCdf, with rows also predicted from other chunks of the archive
  kProfiled = 28,     // kPrev, with the tables of a profile that decoding needs
  kRefLayers = 29,    // kRefCdf, with rows also predicted from other chunks of the archive
  kRefSparse = 30,    // kRef, with a list of the values that differ
  kBlocks = 31,       // byte planes in independent blocks, which device decoders read directly
  kTransformed = 32,  // values that a learnt transform restores from its coefficients
  kProfiledLayers = 33,  // kLayers, with the weights of a profile that decoding needs
};
// Returns true if the grammars allow a chunk of this codec inside another chunk. Split chunks and
// those that need references, neighbours or a transform are excluded.
constexpr bool MayBeInside(CodecId codec) {
  return (codec < CodecId::kSplit || codec > CodecId::kLayers) && codec != CodecId::kRefLayers &&
         codec != CodecId::kRefSparse && codec != CodecId::kTransformed &&
         codec != CodecId::kProfiledLayers;
}

// Levels of effort. kCompat writes the same bytes as the engine's exhaustive search. The other
// levels trade time for size; each may use every codec of the levels before it.
enum class Effort : uint8_t { kCompat, kFast, kDefault, kHigh, kMax };
std::string_view Name(Effort effort);
std::optional<Effort> ParseEffort(std::string_view name);

// Describes the bytes of a chunk.
struct ChunkShape {
  DType dtype = DType::kF16;
  uint64_t tokens = 0;
  uint32_t heads = 0;
  uint64_t units_per_head = 0;  // values in a head; for block-quantised types, blocks
  Order order = Order::kTokenHeadDim;
  uint32_t byte_shift = 0;  // nonzero if the f16 values stand for 8-bit floats (HalfForm)
};
// Returns how to read the 16-bit words of a chunk.
inline HalfForm MakeForm(const ChunkShape& shape) {
  return {shape.dtype == DType::kBF16, shape.byte_shift};
}

struct EncodedChunk {
  CodecId codec = CodecId::kRaw;
  Bytes payload;
  PlaneChoices planes;  // empty for kRaw and kZstd
  // Set by levels above kFast: matches of repeated values shrank the chunk, so another order of the
  // values may shrink it more.
  bool by_matches = false;
};

// A chunk as rows of units, one row per token, so that each channel is a column. Bytes that the
// shape does not explain form one row.
struct ChunkGrid {
  uint64_t rows = 1, columns = 0;
};
ChunkGrid FindGrid(const ChunkShape& shape, uint64_t raw_bytes);
// Returns the model's head dimension, or 0 if it is not known.
uint64_t HeadDim(const ChunkShape& shape);

class NeighbourSource;   // cdf/layers.h
class Profile;           // profiled/profile.h
class ReferenceRows;     // ref/ref.h
struct TransformedRows;  // transformed/transformed.h

// Everything that decoding reads apart from the payload. The codec's row in table.cc says which of
// these it needs.
struct ChunkInputs {
  RowSteps steps = {};  // positions of the chunk's rows
  const ReferenceRows* references = nullptr;
  const NeighbourSource* neighbours = nullptr;
  const Profile* profile = nullptr;
  const TransformedRows* transformed = nullptr;  // encodes these rows instead of the payload
  // True if the caller verifies a hash of all rows; rows copied from references are then not hashed
  // one by one.
  bool content_is_checked = false;
};

// Encodes a chunk inside of another one. The chooser of codecs passes it in, because families may
// not include the chooser.
using InnerEncoder = std::function<EncodedChunk(const ChunkShape& shape, ByteSpan raw)>;

// Decodes a chunk inside of another one; DecodeChunk (chunk.h) is passed in.
using InnerDecoder = void (*)(CodecId codec, const ChunkShape& shape, ByteSpan payload,
                              std::span<std::byte> raw, CodecScratch& scratch,
                              const ChunkInputs& inputs);

}  // namespace kv
