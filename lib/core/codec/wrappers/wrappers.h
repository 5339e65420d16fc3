// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by rows.cc, widened.cc, split.cc

#include <cstdint>
#include <vector>

#include "lib/core/codec/codec.h"

// Codecs that hold chunks of other codecs, whose encoder and decoder they are handed. FORMAT.md in
// this folder is the grammar.
namespace kv {

// Stores rows that occur more than once only once. Values of a first layer depend on nothing but
// the token, so a repeated token repeats its row.

// Which rows are new and which repeat an earlier one. A reference of 0 is the next new row, 1 + n
// is new row n again.
struct RowPlan {
  ArenaVector<uint32_t> references;  // one per row
  uint32_t unique = 0;
};

// Compares whole rows by content. `raw` must consist of rows of `row_bytes`.
RowPlan FindRepeatedRows(ByteSpan raw, uint64_t row_bytes, Arena* arena = nullptr);
// Returns the new rows, one after another, in `scratch.rows`.
std::span<std::byte> NewRows(const RowPlan& plan, ByteSpan raw, uint64_t row_bytes,
                             CodecScratch& scratch);

// Appends everything but the coded rows: the u32 number of new rows, the u32 length of the
// references, and the references.
void WriteReferences(const RowPlan& plan, CodecScratch& scratch, Bytes& out);
// Reads the references of `rows` rows. Throws kBadFrame, kBadPayload, kTruncated.
RowPlan ReadReferences(ByteReader& reader, uint64_t rows, CodecScratch& scratch);
// Copies the new rows to all their places.
void RepeatRows(const RowPlan& plan, ByteSpan new_rows, uint64_t row_bytes,
                std::span<std::byte> raw);

// The steps of the new rows, of those of all rows; nothing if there are none. Throws kBadFrame.
ArenaVector<uint32_t> StepsOfNewRows(const RowPlan& plan, const RowSteps& steps, Arena* arena);

// The shape of the new rows: a chunk of their own.
ChunkShape NewRowsShape(const ChunkShape& shape, const RowPlan& plan, const ChunkGrid& grid);
// The references and the new rows, which `inner` holds, as one chunk.
EncodedChunk JoinRows(const RowPlan& plan, EncodedChunk inner, CodecScratch& scratch);

// Throws as DecodeChunk.
void DecodeRepeatedRows(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                        CodecScratch& scratch, const ChunkInputs& inputs, InnerDecoder inner);

// Stores f32 values as halves. If every value is an f16, the f16 values are all there is; otherwise
// the upper halves are bf16, and the lower bytes follow as planes.

// `encode` codes the halves. It may use all of `scratch` but `halves` and `rows`.
EncodedChunk EncodeWide(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch,
                        const InnerEncoder& encode);
// Throws as DecodeChunk.
void DecodeWide(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch, const ChunkInputs& inputs, InnerDecoder inner);

// Codes the two halves of every head apart, for pages in which K and V lie side by side there: one
// has patterns that the other has not.

// Whether heads can be halved: the shape explains the bytes, and a head has an even number of
// units.
bool CanSplit(const ChunkShape& shape, uint64_t raw_bytes);
// The result may be longer than `raw`, which must be such a chunk.
EncodedChunk EncodeSplit(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch,
                         const InnerEncoder& encode);
// Throws as DecodeChunk.
void DecodeSplit(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch, const ChunkInputs& inputs, InnerDecoder inner);

}  // namespace kv
