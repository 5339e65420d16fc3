// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by rows.cc, widened.cc, split.cc

#include <cstdint>
#include <vector>

#include "lib/core/codec/codec.h"

// Codecs that contain chunks of other codecs. The encoder and decoder of the inner ones are passed
// in. FORMAT.md in this folder is the grammar.
namespace kv {

// Repeated rows are stored once. Values of the first layer depend only on the token, so a repeated
// token repeats its row.
//
// A RowPlan tells which rows are new and which repeat an earlier one: a reference of 0 is the next
// new row, 1 + n repeats new row n.
struct RowPlan {
  ArenaVector<uint32_t> references;  // one per row
  uint32_t unique = 0;
};

// Finds equal rows by content. `raw` must consist of rows of `row_bytes`.
RowPlan FindRepeatedRows(ByteSpan raw, uint64_t row_bytes, Arena* arena = nullptr);
// Returns the new rows, one after another, in `scratch.rows`.
std::span<std::byte> NewRows(const RowPlan& plan, ByteSpan raw, uint64_t row_bytes,
                             CodecScratch& scratch);

// Appends everything except the coded rows: the u32 number of new rows, the u32 length of the
// references, and the references.
void WriteReferences(const RowPlan& plan, CodecScratch& scratch, Bytes& out);
// Reads the references of `rows` rows. Throws kBadFrame, kBadPayload, kTruncated.
RowPlan ReadReferences(ByteReader& reader, uint64_t rows, CodecScratch& scratch);
// Copies the new rows to all their places.
void RepeatRows(const RowPlan& plan, ByteSpan new_rows, uint64_t row_bytes,
                std::span<std::byte> raw);

// Returns the positions of the new rows, given the positions of all rows; empty if these are empty.
// Throws kBadFrame.
ArenaVector<uint32_t> StepsOfNewRows(const RowPlan& plan, const RowSteps& steps, Arena* arena);

// Returns the shape of the chunk that the new rows form.
ChunkShape NewRowsShape(const ChunkShape& shape, const RowPlan& plan, const ChunkGrid& grid);
// Joins the references and the coded new rows, `inner`, into one chunk.
EncodedChunk JoinRows(const RowPlan& plan, EncodedChunk inner, CodecScratch& scratch);

// Throws what DecodeChunk throws.
void DecodeRepeatedRows(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                        CodecScratch& scratch, const ChunkInputs& inputs, InnerDecoder inner);

// f32 values are stored as halves. If every value is an f16, the f16 values suffice; otherwise the
// upper halves are stored as bf16, and the lower bytes follow as planes. `encode` codes the halves.
// It may use everything in `scratch` except `halves` and `rows`.
EncodedChunk EncodeWide(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch,
                        const InnerEncoder& encode);
// Throws what DecodeChunk throws.
void DecodeWide(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch, const ChunkInputs& inputs, InnerDecoder inner);

// The two halves of every head are coded separately, for pages with K and V side by side in each
// head, because their statistics differ. CanSplit returns true if the shape explains the bytes and
// a head has an even number of units.
bool CanSplit(const ChunkShape& shape, uint64_t raw_bytes);
// Encodes a chunk for which CanSplit holds. The result may be longer than `raw`.
EncodedChunk EncodeSplit(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch,
                         const InnerEncoder& encode);
// Throws what DecodeChunk throws.
void DecodeSplit(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch, const ChunkInputs& inputs, InnerDecoder inner);

}  // namespace kv
