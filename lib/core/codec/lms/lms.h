// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/like/likeness.h"
#include "lib/core/codec/prev/prev.h"

// Half floats in the context of a prediction that every channel learns as it goes: what
// the prev frame does, for keys better and slower. FORMAT.md in this folder is the grammar.
namespace kv {

// Appends the frame to `out` if it is smaller than `to_beat` bytes. `head_dim` is that of the
// model, 0 if not known. More than one row, of at least 16 columns.
// With `like` rows are predicted from earlier ones, too, and the frame says from which: codec kLike
// instead of kLms.
bool EncodeLms(ByteSpan values, const HalfSurvey& survey, uint64_t rows, uint64_t columns,
               uint64_t head_dim, const LikenessPlan* like, uint64_t to_beat, CodecScratch& scratch,
               Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeLms(ByteSpan frame, bool bfloat, bool with_likenesses, std::span<std::byte> values,
               CodecScratch& scratch);

}  // namespace kv
