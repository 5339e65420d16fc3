// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/core/base/hash.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/codec/rotation.h"

// Codes rows of a chunk by rows of another cache: as a copy where they are equal, by their
// distances where they are near. Other rows are a chunk of their own in another codec. FORMAT.md in
// this folder is the grammar. ref.cc encodes, near_choice.cc chooses among the ways to code near
// rows, ref_decode.cc decodes, near_encode.cc and near_decode.cc have the residuals.
namespace kv {

// Consecutive rows of a chunk and the tokens of another cache that stand for them.
struct ReferenceRun {
  uint16_t reference = 0;  // its place in the archive's list
  bool is_value = false;
  bool equal = false;  // the same bytes; otherwise residuals tell the difference
  uint32_t layer = 0;  // the reference's own number of it
  uint32_t first_row = 0, rows = 0;
  uint64_t first_token = 0;  // of the reference
  int32_t turn = 0;          // steps by which positions here are further on
  Hash128Bytes hash = {};    // of the reference's rows
};

struct BesideNeighbours;

// Gives rows of the caches that an archive refers to.
class ReferenceRows {
 public:
  virtual ~ReferenceRows() = default;
  // Fills `rows` with the run's tokens as they are stored, [token][head][unit], and returns their
  // type. Throws kReferenceMissing, and kReferenceDiffers where there are no such tokens or where
  // one has not just so many elements.
  virtual DType Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const = 0;
  // Fills `rows` with the tokens of an equal run of a chunk of this type. Throws kReferenceDiffers
  // also where they are of another type or size.
  virtual void ReadEqual(const ReferenceRun& run, DType dtype, uint64_t elements,
                         std::span<std::byte> rows) const;
};

// Encodes with those of the proposed runs (ascending, disjoint, of one K or V) that help, and their
// parts; the rest at the level `effort`. `rotation` is the one that turns keys. At kMax,
// differences are also expected from those of neighbours, if there are any. Returns a chunk of
// another codec if that is as small.
EncodedChunk EncodeByReference(const ChunkShape& shape, ByteSpan raw,
                               std::span<const ReferenceRun> proposed, const Rotation& rotation,
                               const ReferenceRows& references, Effort effort,
                               CodecScratch& scratch, const BesideNeighbours* neighbours = nullptr);

// Reads the runs alone. Throws as DecodeChunk.
std::vector<ReferenceRun> ReadReferenceRuns(const ChunkShape& shape, ByteSpan payload);
// Decodes the rows that belong to no run alone, into memory of their size. All runs are equal.
// Throws as DecodeChunk.
void DecodeRowsWithoutReference(const ChunkShape& shape, ByteSpan payload, CodecScratch& scratch,
                                std::span<std::byte> rows);

// For tests and fuzzers of all codecs: a frame without references.
bool EncodeWithoutReference(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat,
                            CodecScratch& scratch, EncodedChunk& out);
// Reads rows through scratch.references. Throws as DecodeChunk, kReferenceMissing and
// kReferenceDiffers.
template <CodecId kCodec>
void DecodeByReference(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                       CodecScratch& scratch);

}  // namespace kv
