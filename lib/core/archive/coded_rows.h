// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/row_order.h"

// Rows of K and V as archives code them: how many to a chunk, in which order, and whether head by
// head. For archives, and for those who want to know what one would come to.
namespace kv {

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

// Encodes rows in [token][head][unit] that stand on their own: no reference, no profile, no other
// chunk. `order` is that of their cells, or null. Says in `head` how they are coded.
EncodedChunk EncodeRows(ChunkHead& head, ByteSpan raw, const RowOrder* order, Effort effort,
                        CodecScratch& scratch);

// Decodes rows to where they are in the source, in the units' order that `head` says. `order` is
// that in which they were coded, or null; it gives `inputs` their steps. Throws as DecodeChunk.
void DecodeRows(CodecId codec, const ChunkHead& head, ByteSpan payload, const RowOrder* order,
                std::span<std::byte> raw, CodecScratch& scratch, ChunkInputs inputs = {});

}  // namespace kv
