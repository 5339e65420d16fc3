// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

#include "lib/core/codec/codec.h"

// Estimates the size of an encoded chunk from a few samples, before it is encoded.
namespace kv {

inline constexpr uint64_t kShortChunk = 64 << 10;

// Counts groups of four and of eight consecutive values that occurred before, up to low mantissa
// bits.
struct Repeats {
  // sampled words of four values, and the words of four and of eight that occurred before
  uint64_t looked = 0, four = 0, eight = 0;
};
// Samples about `most` words, or one pair in each row if there are more rows.
Repeats CountRepeats(ByteSpan raw, uint64_t row_bytes, DType dtype, uint64_t most = UINT64_MAX);

// Returns a size below which the encoded chunk will hardly ever fall, at a level above kCompat, in
// at most a tenth of the time of encoding: the entropy of a sample, in the context of the row above
// where the level uses it, less what the level's codecs gained beyond that on real caches. Repeated
// values count as free. `beside`: K and V lie side by side in each head.
uint64_t EstimateFloor(const ChunkShape& shape, ByteSpan raw, Effort effort, bool beside);

}  // namespace kv
