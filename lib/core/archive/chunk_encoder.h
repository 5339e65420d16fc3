// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/archive/coded_rows.h"
#include "lib/core/archive/neighbours.h"
#include "lib/core/base/arena.h"
#include "lib/core/codec/ref/ref.h"

// How a source is cut into chunks, and how these are encoded, one by one and on any number of
// threads.
namespace kv::kvz {

// Cuts files, or groups of files, into chunks, in the order of file, offset and token. The heads
// lack hashes and codec, and their leads the bytes. `sizes` are those of the files; that of a group
// stands at its first one, and 0 at the others. `effort` decides the order of units: kCompat codes
// head after head, as the engine does; the other levels want all channels of a token together.
std::vector<ChunkHead> PlanChunks(std::span<const uint64_t> sizes,
                                  const std::vector<Region>& regions, uint64_t chunk_bytes,
                                  Effort effort);

// What chunks may refer to.
struct Bases {
  References references;
  ReferencePlan plan;
};

// The order of a chunk's rows; null if they stay where they are, or if there are no orders. Rows of
// references are as they are there.
std::shared_ptr<const RowOrder> OrderFor(const ChunkHead& head, const RowOrders* orders,
                                         const Bases& bases, Effort effort);

struct ChunkRecord {
  ChunkHead head;
  Bytes start;  // of the record, up to the payload
  uint64_t payload_hash = 0;
  EncodedChunk encoded;
};

class ChunkEncoder {
 public:
  // `bases`, `plan` and `orders` must outlive it; `profile` and `orders` may be null. If `check` is
  // set, each chunk is decoded and compared.
  ChunkEncoder(Effort effort, std::shared_ptr<const Profile> profile, bool check,
               const Bases& bases, const NeighbourPlan& plan, const RowOrders* orders)
      : effort_(effort),
        profile_(std::move(profile)),
        check_(check),
        bases_(bases),
        plan_(plan),
        orders_(orders) {}

  // Encodes a planned chunk of `source`, the bytes of its file or, if `is_joined`, of its group.
  // Throws kInternal if it is checked and does not decode to what it was.
  ChunkRecord Encode(const ChunkHead& planned, ByteSpan source, bool is_joined, uint32_t tag) const;

 private:
  // What is kept from chunk to chunk. Leased rather than of a thread: where memory runs out, the C
  // library ends a program that cannot note a thread's destructors.
  struct Scratch {
    CodecScratch codec;
    ScratchBuffer raw, decoded;
  };

  // By rows of references, or without any others. Sets the codec parameter.
  EncodedChunk EncodeFirst(ChunkHead& head, ByteSpan raw, const ReferenceRows& rows,
                           const NeighbourSource& neighbours, const RowSteps& steps,
                           CodecScratch& scratch) const;
  // The neighbours of a chunk whose rows have the same runs as its own.
  BesideNeighbours NeighboursBeside(const ChunkHead& head, std::span<const ReferenceRun> runs,
                                    const std::vector<Neighbour>& neighbours,
                                    const NeighbourSource& source) const;
  void TryNeighbours(ChunkHead& head, ByteSpan raw, const NeighbourSource& neighbours,
                     const RowSteps& steps, CodecScratch& scratch, EncodedChunk& chunk) const;
  // `raw` is the chunk as it is in the source, or with heads apart.
  void CheckAgainstSource(const ChunkHead& head, const EncodedChunk& encoded, ByteSpan raw,
                          const RowOrder* order, const ReferenceRows& rows,
                          const NeighbourSource& neighbours, Scratch& scratch) const;

  const Effort effort_;
  const std::shared_ptr<const Profile> profile_;
  const bool check_;
  const Bases& bases_;
  const NeighbourPlan& plan_;
  const RowOrders* orders_;
  mutable Reuse<Scratch> scratches_;
};

}  // namespace kv::kvz
