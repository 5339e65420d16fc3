// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/study/attention/attention.h"

namespace kv {

// Simpler ways to shrink one head's cache, for comparison with the compressor at equal bytes.

// A head's shrunken keys and values, and the tokens of the original that each stands for.
struct SmallCache {
  std::vector<float> k, v;  // [tokens][dim]
  std::vector<TokenRange> sources;
};

// Replaces each range by the mean of its tokens.
SmallCache MeanPool(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources);

// Keeps the last token of each range.
SmallCache KeepLast(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources);

// Keeps the `count` tokens with the smallest key norms, in their order; of equal norms the earlier
// one. Tokens with a NaN norm are the first to go.
SmallCache KeepSmallestKeys(const FloatMatrix& k, const FloatMatrix& v, uint64_t count);

// Quantises rows symmetrically to `bits` bits and dequantises them again, in place. Each row has
// one f16 scale, max|x| / (2^(bits-1) - 1).
void QuantiseRows(std::vector<float>& rows, uint64_t columns, int bits);
// Returns how many bytes such a row takes with its scale.
uint64_t QuantisedRowBytes(uint64_t columns, int bits);

}  // namespace kv
