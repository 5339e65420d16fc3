// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "lib/core/archive/records.h"
#include "lib/core/codec/cdf/layers.h"
#include "lib/core/snapshot/snapshot.h"

// The order in which rows of a chunk are coded where the cache has those of several sequences by
// turns, or positions out of order (FORMAT.md, Rows in the order of cells). Codecs look at the rows
// above, and those of another sequence say little.
namespace kv {

struct RowOrder {
  std::vector<uint32_t> rows;   // of the chunk, in the order in which they are coded
  std::vector<uint32_t> steps;  // their positions, counted from the first one's, modulo 2^32
  bool moves = false;           // whether any row changes its place
  bool jumps = false;           // whether positions do anything but count up

  // Copies rows to their places in the order, and back.
  void Apply(ByteSpan raw, std::span<std::byte> ordered) const;
  void Undo(ByteSpan ordered, std::span<std::byte> raw) const;
};

// The orders of a snapshot's chunks. Any number of threads may ask.
class RowOrders {
 public:
  explicit RowOrders(const Snapshot& snapshot);
  // Whether the rows of every cache are in order, so that nobody needs to ask.
  bool empty() const { return all_in_order_; }
  // Null if no cells are known for these tokens of a layer. The order is by stream, smallest
  // sequence and position; where all are equal, rows stay as they are.
  std::shared_ptr<const RowOrder> Of(uint32_t layer, uint64_t begin, uint64_t count) const;

 private:
  struct Place {  // of a cell in its cache
    uint32_t stream;
    int64_t sequence;
    int64_t position;
    auto operator<=>(const Place&) const = default;
  };
  using Key = std::tuple<size_t, uint64_t, uint64_t>;

  std::vector<std::vector<Place>> groups_;
  std::map<uint32_t, size_t> group_of_;  // by layer
  bool all_in_order_ = true;
  mutable std::mutex mutex_;  // of all below
  // K and V of all layers have the same orders.
  mutable std::map<Key, std::shared_ptr<const RowOrder>> made_;
  mutable uint64_t made_rows_ = 0;
};

// Neighbours of a chunk whose rows are in another order than theirs.
class OrderedNeighbours : public NeighbourSource {
 public:
  // Null for a chunk whose rows stay where they are.
  OrderedNeighbours(const NeighbourSource& neighbours, const RowOrder* order)
      : neighbours_(neighbours), order_(order) {}
  NeighbourChunk Read(const Neighbour& neighbour) const override;

 private:
  const NeighbourSource& neighbours_;
  const RowOrder* order_;
};

// Rows of K and V as archives code them: how many to a chunk, in which order, and whether head by
// head. For archives, and for those who want to know what one would come to.

// The bytes of a chunk: more at levels that look for rows that resemble earlier ones.
constexpr uint64_t ChunkBytesAt(Effort effort) {
  return effort >= Effort::kHigh ? 4 << 20 : 1 << 20;
}

// Cuts [0, total) into pieces of `step`; a rest under a quarter of a step joins the last piece.
template <typename Body>
void ForEachPiece(uint64_t total, uint64_t step, const Body& body) {
  for (uint64_t begin = 0; begin < total;) {
    const uint64_t left = total - begin;
    const uint64_t count = left < step + step / 4 ? left : step;
    body(begin, count);
    begin += count;
  }
}

// A chunk of rows of which nothing else is known.
ChunkHead HeadOfRows(bool is_value, const ChunkShape& shape, bool heads_known);

// Whether a chunk's rows are coded in the order of cells.
bool WantsOrder(const ChunkHead& head, const RowOrder& order, Effort effort);

// Units of one head after another, coded as the engine does it: their matches within a head may be
// worth more than those across heads. If the level wants that and it is smaller, it takes the place
// of `best`, `head` says so, and the bytes that were coded are returned; otherwise nothing.
std::span<std::byte> TryHeadsApart(ChunkHead& head, ByteSpan raw, Effort effort,
                                   CodecScratch& scratch, EncodedChunk& best);

// Encodes rows in [token][head][unit] that need no reference and no other chunk. `order` is that of
// their cells, or null; `profile` one that may code them, or null. Says in `head` how they are
// coded.
EncodedChunk EncodeRows(ChunkHead& head, ByteSpan raw, const RowOrder* order, Effort effort,
                        CodecScratch& scratch, const Profile* profile = nullptr);

// Decodes rows to where they are in the source, in the units' order that `head` says. `order` is
// that in which they were coded, or null; it gives `inputs` their steps. Throws as DecodeChunk.
void DecodeRows(CodecId codec, const ChunkHead& head, ByteSpan payload, const RowOrder* order,
                std::span<std::byte> raw, CodecScratch& scratch, ChunkInputs inputs = {});

}  // namespace kv
