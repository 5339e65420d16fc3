// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

#include "lib/core/codec/codec.h"

// Estimates from a few samples of a chunk, before it is encoded.
namespace kv {

inline constexpr uint64_t kShortChunk = 64 << 10;

// Counts of four and eight values in a row that were seen before, equal but for low mantissa bits.
struct Repeats {
  uint64_t looked = 0, four = 0, eight = 0;  // words of four values; those seen before
};
// Looks at about `most` words, or at one pair in each row if there are more rows.
Repeats CountRepeats(ByteSpan raw, uint64_t row_bytes, DType dtype, uint64_t most = UINT64_MAX);

// Estimates, in a tenth of the time of encoding at most, a size that a coded chunk hardly ever
// falls below at a level above kCompat: the entropy of a sample, in the context of the row above
// where the level uses it, less what the level's codecs gained beyond that on real caches. Values
// that come back count as nothing. `beside`: K and V lie side by side in each head.
uint64_t EstimateFloor(const ChunkShape& shape, ByteSpan raw, Effort effort, bool beside);

}  // namespace kv
