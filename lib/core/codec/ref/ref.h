// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by ref.cc, ref_decode.cc

#include <span>
#include <vector>

#include "lib/core/codec/ref/near.h"

// Codes rows of a chunk by rows of another cache: as a copy where they are equal, by their
// distances where they are near. Other rows are a chunk of their own in another codec. FORMAT.md in
// this folder is the grammar.
namespace kv {

// What an encoder may use: neighbours, each with the runs of its rows. These are the proposed runs
// of the chunk, one by one, but for the layer, K or V, and the turn.
struct BesideNeighbours {
  struct One {
    Neighbour neighbour;
    std::vector<ReferenceRun> runs;
  };
  std::vector<One> all;
  std::vector<int32_t> turns;  // of K, for each proposed run
  const NeighbourSource& source;
  bool is_value;  // whether the chunk is V
};

// Encodes with those of the proposed runs (ascending, disjoint, of one K or V) that help, and their
// parts; the rest by `own`, which is the level `effort`. `rotation` is the one that turns keys. At
// kMax, differences are also expected from those of neighbours, if there are any. Returns a chunk
// of another codec if that is as small.
EncodedChunk EncodeByReference(const ChunkShape& shape, ByteSpan raw,
                               std::span<const ReferenceRun> proposed, const Rotation& rotation,
                               const ReferenceRows& references, Effort effort,
                               CodecScratch& scratch, const InnerEncoder& own,
                               const BesideNeighbours* neighbours = nullptr);

// Reads the runs alone. Throws as DecodeChunk.
std::vector<ReferenceRun> ReadReferenceRuns(const ChunkShape& shape, ByteSpan payload);
// Reads the neighbours of a chunk alone. Throws as DecodeChunk.
std::vector<Neighbour> ReadErrorNeighbours(const ChunkShape& shape, ByteSpan payload);
// Decodes the rows that belong to no run alone, into memory of their size. All runs are equal.
// Throws as DecodeChunk.
void DecodeRowsWithoutReference(const ChunkShape& shape, ByteSpan payload, CodecScratch& scratch,
                                std::span<std::byte> rows, const ChunkInputs& inputs,
                                InnerDecoder inner);

// Decodes a chunk of one of the codecs that need references. Throws as DecodeChunk,
// kReferenceMissing and
// kReferenceDiffers.
void DecodeByReference(CodecId codec, const ChunkShape& shape, ByteSpan payload,
                       std::span<std::byte> raw, CodecScratch& scratch, const ChunkInputs& inputs,
                       InnerDecoder inner);

// The runs of a frame. Internal to lib/core/codec/ref.

constexpr uint64_t kRunBytes = 44;

// What precedes the rows of a frame.
struct ReferenceHead {
  std::vector<ReferenceRun> runs;
  CodecId own_codec = CodecId::kRaw;
  uint32_t own_bytes = 0;  // of the chunk of own rows; 0 if there are none
};

void WriteReferenceHead(const ReferenceHead& head, ByteWriter& out);
// Throws kTruncated, and kBadFrame for runs that no encoder writes.
ReferenceHead ReadReferenceHead(ByteReader& reader, const ChunkShape& shape, uint64_t raw_bytes);

// The rows that a chunk in order 0 consists of; 1 if its shape does not explain its bytes.
uint64_t ReferenceGridRows(const ChunkShape& shape, uint64_t raw_bytes);
// The own rows of a chunk: a chunk of their own.
ChunkShape OwnRowsShape(const ChunkShape& shape, uint64_t raw_bytes, uint64_t rows);

}  // namespace kv
