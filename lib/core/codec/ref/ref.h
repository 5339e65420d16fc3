// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by ref.cc, ref_decode.cc

#include <span>
#include <vector>

#include "lib/core/codec/ref/similar_rows.h"

// Codes rows of a chunk by rows of another cache: equal rows as a copy, similar ones by their
// differences; the remaining rows are a chunk of their own in another codec. FORMAT.md in this
// folder is the grammar.
namespace kv {

// Neighbours that an encoder may use. Each has its own copy of the proposed runs, with its layer,
// K or V, and rotation.
struct BesideNeighbours {
  struct One {
    Neighbour neighbour;
    std::vector<ReferenceRun> runs;
  };
  std::vector<One> all;
  std::vector<int32_t> position_shifts;  // rotation of K, per proposed run
  const NeighbourSource& source;
  bool is_value;  // true if the chunk is V
};

// Encodes by reference what saves bytes: whole proposed runs or parts of them. The runs ascend, are
// disjoint, and are all of K or all of V. `own` codes the other rows, at level `effort`. `rotation`
// is the keys'. At kMax, differences are also forecast from the differences of `neighbours`, if
// given. Returns a chunk of another codec if that chunk is not larger.
EncodedChunk EncodeByReference(const ChunkShape& shape, ByteSpan raw,
                               std::span<const ReferenceRun> proposed, const Rotation& rotation,
                               const ReferenceRows& references, Effort effort,
                               CodecScratch& scratch, const InnerEncoder& own,
                               const BesideNeighbours* neighbours = nullptr);

// Reads only the runs. Throws what DecodeChunk throws.
std::vector<ReferenceRun> ReadReferenceRuns(const ChunkShape& shape, ByteSpan payload);
// Reads only the neighbours of a chunk. Throws what DecodeChunk throws.
std::vector<Neighbour> ReadErrorNeighbours(const ChunkShape& shape, ByteSpan payload);
// Decodes only the rows that belong to no run, into memory of exactly their size. All runs must be
// equal ones. Throws what DecodeChunk throws.
void DecodeRowsWithoutReference(const ChunkShape& shape, ByteSpan payload, CodecScratch& scratch,
                                std::span<std::byte> rows, const ChunkInputs& inputs,
                                InnerDecoder inner);

// Decodes a chunk of one of the codecs that need references. Throws what DecodeChunk throws,
// kReferenceMissing and kReferenceDiffers.
void DecodeByReference(CodecId codec, const ChunkShape& shape, ByteSpan payload,
                       std::span<std::byte> raw, CodecScratch& scratch, const ChunkInputs& inputs,
                       InnerDecoder inner);

// The frame's header. Internal to lib/core/codec/ref.

constexpr uint64_t kRunBytes = 44;

// The part of a frame before the rows.
struct ReferenceHead {
  std::vector<ReferenceRun> runs;
  CodecId own_codec = CodecId::kRaw;
  uint32_t own_bytes = 0;  // size of the chunk of remaining rows; 0 if there are none
};

void WriteReferenceHead(const ReferenceHead& head, ByteWriter& out);
// Throws kTruncated, and kBadFrame for runs that no encoder writes.
ReferenceHead ReadReferenceHead(ByteReader& reader, const ChunkShape& shape, uint64_t raw_bytes);

// Returns the number of rows of a chunk in order 0; 1 if its shape does not explain its bytes.
uint64_t ReferenceGridRows(const ChunkShape& shape, uint64_t raw_bytes);
// Returns the shape of the chunk that the remaining rows form.
ChunkShape OwnRowsShape(const ChunkShape& shape, uint64_t raw_bytes, uint64_t rows);

}  // namespace kv
