// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by table.cc, levels.cc

#include <span>
#include <string_view>

#include "lib/core/codec/codec.h"

// Encodes and decodes chunks. table.cc has one row per codec, which gives its name, its decoder,
// and its place in the common tests and the fuzzer; levels.cc chooses among codecs.
namespace kv {

// Encodes any content; stores the raw bytes (kRaw) if coding does not shrink them. At kCompat the
// codec follows from the dtype, and bytes that are not whole words or blocks of that type go to
// kZstd. `steps` are the positions of the rows.
EncodedChunk EncodeChunk(const ChunkShape& shape, ByteSpan raw, Effort effort,
                         CodecScratch& scratch, const RowSteps& steps = {});
// Encodes in kBlocks, at a level above kCompat, even if that does not shrink the bytes: devices
// decode no other codec. Empty chunks are stored raw.
EncodedChunk EncodeChunkInBlocks(const ChunkShape& shape, ByteSpan raw, Effort effort,
                                 CodecScratch& scratch);
// Returns EncodeChunk at a level, for codecs that contain chunks. The scratch must outlive it.
InnerEncoder EncoderAt(Effort effort, CodecScratch& scratch, const RowSteps& steps = {});

// Fills `raw`. Its size must come from a source that the caller trusts, because memory is allocated
// in proportion to it and to nothing else. Throws kBadFrame, kBadPayload and, if the structure is
// damaged, kTruncated or kTrailingBytes.
void DecodeChunk(CodecId codec, const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch, const ChunkInputs& inputs = {});

// Returns "raw", "gear-f16" ..., or an empty text if no codec has the id.
std::string_view Name(CodecId codec);
// Return true if the codec's chunks need rows of another cache, other chunks of their archive, or a
// profile.
bool HasReferences(CodecId codec);
bool HasNeighbours(CodecId codec);
bool NeedsProfile(CodecId codec);
// Returns true if decoding a chunk needs other caches or chunks, or a transform.
bool NeedsOthers(CodecId codec);

// Passed as `to_beat` by callers that take a result of any size.
constexpr uint64_t kAnySize = UINT64_MAX;

struct CodecNeeds {
  bool references = false, neighbours = false, profile = false, transform = false;
};

struct CodecRow {
  CodecId id;
  std::string_view name;
  // Inputs of decoding apart from the payload.
  CodecNeeds needs = {};
  // Returns true if a chunk of this type may be stored in the codec; decoders refuse other chunks.
  bool (*takes)(DType dtype);
  // The fastest level that writes this codec.
  Effort since;
  // True if the levels from `since` on try the codec on every chunk and keep the smallest result.
  // levels.cc decides by rules of its own when to use the other codecs.
  bool tried = false;
  // Sets payload and planes of `out`. Returns false if the codec cannot store these bytes or needs
  // `to_beat` bytes or more. Null for codecs that need more than the chunk.
  bool (*encode)(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat, const RowSteps& steps,
                 CodecScratch& scratch, EncodedChunk& out) = nullptr;
  // Fills `raw`; throws as DecodeChunk.
  void (*decode)(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch, const ChunkInputs& inputs);
};

// Returns the table of codecs, in the order of their ids.
std::span<const CodecRow> Codecs();
// Returns nullptr if no codec has this id.
const CodecRow* FindCodec(CodecId id);

}  // namespace kv
