// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/cdf/channel_model.h"
#include "lib/core/codec/prev/prev.h"

// Half floats coded whole under the distribution that a ChannelModel expects: the smallest and the
// slowest frames. FORMAT.md in this folder is the grammar.
namespace kv {

// Whether a grid can be coded this way: the model's state takes some 5 kB per column, so that there
// must be rows for it.
bool FitsCdf(uint64_t rows, uint64_t columns);

// Appends the frame to `out` if it is smaller than `to_beat` bytes. `head_dim` is that of the
// model, 0 if not known; the grid fits.
bool EncodeCdf(ByteSpan values, bool bfloat, uint64_t rows, uint64_t columns, uint64_t head_dim,
               uint64_t to_beat, Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeCdf(ByteSpan frame, bool bfloat, std::span<std::byte> values);

}  // namespace kv
