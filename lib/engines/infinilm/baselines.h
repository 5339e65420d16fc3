// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/study/attention/attention.h"

namespace kv {

// Plainer ways to shrink one head's cache, for comparison at equal bytes.

// A head's keys and values as they would be used, and the tokens each stands for.
struct SmallCache {
  std::vector<float> k, v;  // [tokens][dim]
  std::vector<TokenRange> sources;
};

// Each range becomes the mean of its tokens.
SmallCache MeanPool(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources);

// The last token of each range.
SmallCache KeepLast(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources);

// The `count` tokens with the smallest key norms, in order; of equal norms the earlier one. NaN
// norms go first.
SmallCache KeepSmallestKeys(const FloatMatrix& k, const FloatMatrix& v, uint64_t count);

// Symmetric quantisation to `bits` bits in place: one f16 scale per row, max|x| / (2^(bits-1) - 1).
void QuantiseRows(std::vector<float>& rows, uint64_t columns, int bits);
uint64_t QuantisedRowBytes(uint64_t columns, int bits);  // with its scale

}  // namespace kv
