// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by table.cc, levels.cc

#include <span>
#include <string_view>

#include "lib/core/codec/codec.h"

// Encodes and decodes chunks. table.cc has one row per codec, from which its name, its decoder, the
// tests that every codec must pass and the fuzzer of chunks follow; levels.cc chooses among codecs.
namespace kv {

// Encodes any content; stores raw bytes (kRaw) if coding does not shrink them. At kCompat the codec
// follows from the dtype; bytes that are not whole words or blocks of that type go to kZstd.
// `steps` are the positions of the rows.
EncodedChunk EncodeChunk(const ChunkShape& shape, ByteSpan raw, Effort effort,
                         CodecScratch& scratch, const RowSteps& steps = {});
// Encodes in kBlocks, at a level above kCompat, whether that shrinks the bytes or not. Empty chunks
// are stored raw.
EncodedChunk EncodeChunkInBlocks(const ChunkShape& shape, ByteSpan raw, Effort effort,
                                 CodecScratch& scratch);
// Returns EncodeChunk at a level, for codecs that hold chunks. The scratch must outlive it.
InnerEncoder EncoderAt(Effort effort, CodecScratch& scratch, const RowSteps& steps = {});

// Fills `raw`. The caller must have good reason for its size, because memory is allocated in
// proportion to it and to nothing else. Throws kBadFrame, kBadPayload and, if the structure is
// damaged, kTruncated or kTrailingBytes.
void DecodeChunk(CodecId codec, const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch, const ChunkInputs& inputs = {});

// Returns "raw", "gear-f16" ..., or an empty text if no codec has the id.
std::string_view Name(CodecId codec);
// Return whether chunks need rows of another cache, and whether they need other chunks of their
// archive, as the codec's row says.
bool HasReferences(CodecId codec);
bool HasNeighbours(CodecId codec);
// Returns whether chunks need any others.
inline bool NeedsOthers(CodecId codec) { return HasReferences(codec) || HasNeighbours(codec); }

// For encoders whose result is wanted whatever its size.
constexpr uint64_t kAnySize = UINT64_MAX;

struct CodecNeeds {
  bool references = false, neighbours = false, profile = false;
};

struct CodecRow {
  CodecId id;
  std::string_view name;
  // What decoding a chunk needs beside its payload.
  CodecNeeds needs = {};
  // Whether a chunk of this type may be stored in the codec; other chunks are refused.
  bool (*takes)(DType dtype);
  // The fastest level that writes the codec.
  Effort since;
  // Whether the levels from `since` on try the codec on every chunk and keep the smallest result.
  // The choice of other codecs follows rules of its own, in levels.cc.
  bool tried = false;
  // Sets payload and planes of `out`. Returns false if the codec cannot store these bytes or would
  // not need fewer than `to_beat`. Null for codecs that need more than the chunk.
  bool (*encode)(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat, const RowSteps& steps,
                 CodecScratch& scratch, EncodedChunk& out) = nullptr;
  // Fills `raw`; throws as DecodeChunk.
  void (*decode)(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch, const ChunkInputs& inputs);
};

// In the order of their ids.
std::span<const CodecRow> Codecs();
// Null if no codec has this id.
const CodecRow* FindCodec(CodecId id);

}  // namespace kv
