// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/cdf/channel_model.h"
#include "lib/core/codec/prev/prev.h"

// Codes whole half floats under the distribution that a ChannelModel expects. These frames are the
// smallest and the slowest. FORMAT.md in this folder is the grammar.
namespace kv {

// Returns whether a grid can be coded this way. The model's state takes some 5 kB per column, so
// there must be enough rows to justify it.
bool FitsCdf(uint64_t rows, uint64_t columns);

// The taps worth having for a grid whose first row is `x`, given where it turns.
ChannelShape ShapeFor(const float* x, uint64_t rows, uint64_t columns, uint64_t head_dim,
                      Rotation rotation);
// What a frame begins with. Reading throws kTruncated, and kBadFrame also unless the values are of
// so many bytes.
void WriteShape(uint32_t largest, const ChannelShape& shape, ByteWriter& frame);
ChannelShape ReadShape(ByteReader& reader, uint64_t value_bytes, uint32_t& largest);

// Appends the frame to `out` and returns true if it is smaller than `to_beat` bytes. `head_dim` is
// the model's, or 0 if it is not known. FitsCdf must hold for the grid.
bool EncodeCdf(ByteSpan values, bool bfloat, uint64_t rows, uint64_t columns, uint64_t head_dim,
               uint64_t to_beat, Bytes& out, Arena* arena = nullptr);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeCdf(ByteSpan frame, bool bfloat, std::span<std::byte> values, Arena* arena = nullptr);

}  // namespace kv
