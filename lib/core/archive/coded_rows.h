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

// The order in which a chunk's rows are coded if the cache interleaves several sequences or has
// positions out of order (FORMAT.md, "Rows in the order of cells"). Codecs look at the rows above,
// and rows of another sequence predict little.
namespace kv {

struct RowOrder {
  std::vector<uint32_t> rows;   // rows of the chunk, in coding order
  std::vector<uint32_t> steps;  // positions of the rows, relative to the first one's, modulo 2^32
  bool moves = false;           // any row changes its place
  bool jumps = false;           // positions do not count up by one

  // Copy rows into the coding order, and back into the source's.
  void Apply(ByteSpan raw, std::span<std::byte> ordered) const;
  void Undo(ByteSpan ordered, std::span<std::byte> raw) const;
};

// The orders of a snapshot's chunks. May be called from any number of threads.
class RowOrders {
 public:
  explicit RowOrders(const Snapshot& snapshot);
  // Returns true if the rows of every cache are in order, so that no caller needs to ask.
  bool empty() const { return all_in_order_; }
  // Returns nullptr if the cells of these tokens of a layer are unknown. Rows are sorted by stream,
  // smallest sequence and position; equal ones keep their order.
  std::shared_ptr<const RowOrder> Of(uint32_t layer, uint64_t begin, uint64_t count) const;
  // Returns the position of a token, modulo 2^32: that of its cell, or else its index.
  uint32_t FindPosition(uint32_t layer, uint64_t token) const;

 private:
  struct Place {  // place of a cell in its cache
    uint32_t stream;
    int64_t sequence;
    int64_t position;
    auto operator<=>(const Place&) const = default;
  };
  using Key = std::tuple<size_t, uint64_t, uint64_t>;

  std::vector<std::vector<Place>> groups_;
  std::map<uint32_t, size_t> group_of_;  // by layer
  bool all_in_order_ = true;
  mutable std::mutex mutex_;  // guards everything below
  // Cache of orders, which K and V of all layers share.
  mutable std::map<Key, std::shared_ptr<const RowOrder>> made_;
  mutable uint64_t made_rows_ = 0;
};

// Adapts neighbours to a chunk whose rows are in another order.
class OrderedNeighbours : public NeighbourSource {
 public:
  // `order` is nullptr for a chunk whose rows stay in place.
  OrderedNeighbours(const NeighbourSource& neighbours, const RowOrder* order)
      : neighbours_(neighbours), order_(order) {}
  NeighbourChunk Read(const Neighbour& neighbour) const override;

 private:
  const NeighbourSource& neighbours_;
  const RowOrder* order_;
};

// Rows of K and V as archives code them: rows per chunk, their order, and heads together or apart.
// Used by archives, and to predict the size that an archive would have.

// Default size of a chunk: larger at levels that search for similar rows.
constexpr uint64_t ChunkBytesAt(Effort effort) {
  return effort >= Effort::kHigh ? 4 << 20 : 1 << 20;
}

// Cuts [0, total) into pieces of `step`; a remainder under a quarter of a step joins the last
// piece.
template <typename Body>
void ForEachPiece(uint64_t total, uint64_t step, const Body& body) {
  for (uint64_t begin = 0; begin < total;) {
    const uint64_t left = total - begin;
    const uint64_t count = left < step + step / 4 ? left : step;
    body(begin, count);
    begin += count;
  }
}

// Returns the head of a chunk of rows of this shape that has no place in any layer or source.
ChunkHead HeadOfRows(bool is_value, const ChunkShape& shape, bool heads_known);

// Returns true if a chunk's rows are coded in the order of cells.
bool WantsOrder(const ChunkHead& head, const RowOrder& order, Effort effort);

// Tries coding all units of one head after another, as the engine does: matches within a head may
// be worth more than those across heads. If the level allows that and it is smaller, replaces
// `best`, records it in `head` and returns the bytes that were coded; otherwise returns an empty
// span.
std::span<std::byte> TryHeadsApart(ChunkHead& head, ByteSpan raw, Effort effort,
                                   CodecScratch& scratch, EncodedChunk& best);

// Encodes rows in [token][head][unit] that need no reference and no other chunk, and sets the
// fields of `head` that tell how. `order` is that of their cells, or nullptr; `profile` may code
// them, or is nullptr.
EncodedChunk EncodeRows(ChunkHead& head, ByteSpan raw, const RowOrder* order, Effort effort,
                        CodecScratch& scratch, const Profile* profile = nullptr);

// Decodes rows to their places in the source, in the order of units that `head` states. `order` is
// the coding order, or nullptr; it supplies the steps of `inputs`. Throws what DecodeChunk throws.
void DecodeRows(CodecId codec, const ChunkHead& head, ByteSpan payload, const RowOrder* order,
                std::span<std::byte> raw, CodecScratch& scratch, ChunkInputs inputs = {});

}  // namespace kv
