// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/archive/coded_rows.h"
#include "lib/core/archive/neighbours.h"
#include "lib/core/archive/transformed_chunks.h"
#include "lib/core/base/arena.h"
#include "lib/core/codec/ref/ref.h"

// Cuts a source into chunks and encodes them, one by one, on any number of threads.
namespace kv::kvz {

// Cuts files, or groups of files, into chunks, in the order of file, offset and token. The heads
// lack hashes and codec; their leads lack the bytes. `sizes` are those of the files; a group's size
// is that of its first file, its other files have 0. `effort` decides the order of units: kCompat
// codes head after head, as the engine does; the other levels keep all channels of a token
// together. If `cuts` are given, chunks of K and V end at these tokens, which ascend, and are at
// least kStreamTokens long between them.
std::vector<ChunkHead> PlanChunks(std::span<const uint64_t> sizes,
                                  const std::vector<Region>& regions, uint64_t chunk_bytes,
                                  Effort effort, std::span<const uint64_t> cuts = {});

// The references, and the plan of which rows they predict.
struct Bases {
  References references;
  ReferencePlan plan;
};

// Returns the order of a chunk's rows; nullptr if they stay in place or there are no orders. Rows
// of references are always in their own order.
std::shared_ptr<const RowOrder> OrderFor(const ChunkHead& head, const RowOrders* orders,
                                         const Bases& bases, Effort effort);

struct ChunkRecord {
  ChunkHead head;
  Bytes start;  // start of the record, before the payload
  uint64_t payload_hash = 0;
  EncodedChunk encoded;
};

class ChunkEncoder {
 public:
  // `bases`, `plan`, `orders` and `cells` must outlive the object; `profile`, `transformed`,
  // `orders` and `cells`, which know the positions of tokens, may be nullptr. If `check` is set,
  // each chunk is decoded and compared.
  ChunkEncoder(Effort effort, std::shared_ptr<const Profile> profile,
               std::shared_ptr<const TransformedChunks> transformed, bool check, const Bases& bases,
               const NeighbourPlan& plan, const RowOrders* orders, const RowOrders* cells)
      : effort_(effort),
        profile_(std::move(profile)),
        transformed_(std::move(transformed)),
        check_(check),
        bases_(bases),
        plan_(plan),
        orders_(orders),
        cells_(cells) {}

  // Encodes a planned chunk of `source`, the bytes of its file or, if `is_joined`, of its group.
  // Throws kInternal if the check fails.
  ChunkRecord Encode(const ChunkHead& planned, ByteSpan source, bool is_joined, uint32_t tag) const;

 private:
  // Buffers that are kept from chunk to chunk. They are leased instead of thread-local: if memory
  // runs out while the C library registers a thread's destructor, it ends the program.
  struct Scratch {
    CodecScratch codec;
    ScratchBuffer raw, decoded;
  };

  // Encodes a chunk with rows of references, or by itself, and sets the head's codec parameter.
  EncodedChunk EncodeFirst(ChunkHead& head, ByteSpan raw, const ReferenceRows& rows,
                           const NeighbourSource& neighbours, const RowSteps& steps,
                           CodecScratch& scratch) const;
  // Returns the neighbours of a chunk whose rows have the same runs as its own.
  BesideNeighbours NeighboursBeside(const ChunkHead& head, std::span<const ReferenceRun> runs,
                                    const std::vector<Neighbour>& neighbours,
                                    const NeighbourSource& source) const;
  // Predicts the chunk from other chunks of the archive, if the gain is worth decoding those first.
  // `first_token` is that of the first row.
  void TryNeighbours(ChunkHead& head, ByteSpan raw, const NeighbourSource& neighbours,
                     uint64_t first_token, const RowSteps& steps, CodecScratch& scratch,
                     EncodedChunk& chunk) const;
  // Codes a chunk that a transform approximated. Returns false for all other chunks.
  bool EncodeTransformed(ChunkHead& head, ByteSpan raw, Scratch& scratch,
                         EncodedChunk& chunk) const;
  // Codes any other chunk; `planned` is its head as NeighbourPlan knows it.
  void EncodeOrdinary(ChunkHead& head, const ChunkHead& planned, std::span<std::byte> raw,
                      Scratch& scratch, EncodedChunk& chunk) const;
  // `raw` is the chunk as in the source, or with heads apart.
  void CheckAgainstSource(const ChunkHead& head, const EncodedChunk& encoded, ByteSpan raw,
                          const RowOrder* order, const ReferenceRows& rows,
                          const NeighbourSource& neighbours, Scratch& scratch) const;

  const Effort effort_;
  const std::shared_ptr<const Profile> profile_;
  const std::shared_ptr<const TransformedChunks> transformed_;
  const bool check_;
  const Bases& bases_;
  const NeighbourPlan& plan_;
  const RowOrders* orders_;
  const RowOrders* cells_;
  mutable Reuse<Scratch> scratches_;
};

}  // namespace kv::kvz
