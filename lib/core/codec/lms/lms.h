// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/like/likeness.h"
#include "lib/core/codec/prev/prev.h"

// Codes half floats in the context of a prediction that each channel learns as it goes. This does
// for keys what a prev frame does, better and more slowly. FORMAT.md in this folder is the grammar.
namespace kv {

// Appends the frame to `out` and returns true if it is smaller than `to_beat` bytes. `head_dim` is
// the model's, or 0 if it is not known. There must be more than one row and at least 16 columns.
// If `like` is given, rows are also predicted from earlier rows, and the frame says from which
// ones: its codec is then kLike instead of kLms.
bool EncodeLms(ByteSpan values, const HalfSurvey& survey, uint64_t rows, uint64_t columns,
               uint64_t head_dim, const LikenessPlan* like, uint64_t to_beat, CodecScratch& scratch,
               Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeLms(ByteSpan frame, bool bfloat, bool with_likenesses, std::span<std::byte> values,
               CodecScratch& scratch);

}  // namespace kv
