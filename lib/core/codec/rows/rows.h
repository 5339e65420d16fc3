// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/core/codec/chunk.h"
#include "lib/core/codec/chunk_levels.h"

// Rows that occur more than once stored once: the values of a first layer, which depend on nothing
// but the token. FORMAT.md in this folder is the grammar.
namespace kv {

// Which rows are new and which are old: 0 for the next new row, 1 + n for the n-th one again.
struct RowPlan {
  std::vector<uint32_t> references;  // one per row
  uint32_t unique = 0;
};

// Compares whole rows by content; `raw` is a number of rows of `row_bytes`.
RowPlan FindRepeatedRows(ByteSpan raw, uint64_t row_bytes);
// The rows that are new, one after another, in `scratch.rows`.
std::span<std::byte> NewRows(const RowPlan& plan, ByteSpan raw, uint64_t row_bytes,
                             CodecScratch& scratch);

// Appends everything but the coded rows: u32 new rows, u32 bytes of what follows, the references.
void WriteReferences(const RowPlan& plan, CodecScratch& scratch, Bytes& out);
// Reads it back for `rows` rows. Throws kBadFrame, kBadPayload, kTruncated.
RowPlan ReadReferences(ByteReader& reader, uint64_t rows, CodecScratch& scratch);
// Puts new rows into all their places.
void RepeatRows(const RowPlan& plan, ByteSpan new_rows, uint64_t row_bytes,
                std::span<std::byte> raw);

// The shape of the new rows: a chunk of their own.
ChunkShape NewRowsShape(const ChunkShape& shape, const RowPlan& plan, const ChunkGrid& grid);
// The references and the new rows, which `inner` holds, as one chunk.
EncodedChunk JoinRows(const RowPlan& plan, EncodedChunk inner, CodecScratch& scratch);

// Stores the new rows at the fastest level. False unless `raw` is a number of rows.
bool EncodeRepeatedRows(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat,
                        CodecScratch& scratch, EncodedChunk& out);
// Throws as DecodeChunk.
void DecodeRepeatedRows(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                        CodecScratch& scratch);

}  // namespace kv
