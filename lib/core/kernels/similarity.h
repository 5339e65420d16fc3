// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv {

// Longest rows whose dot products fit 32 bits for all values: each term is at most 2^14.
constexpr size_t kMaxDotColumns = (size_t{1} << 17) - 1;

// Computes the dot product of each of `count` rows with each of `query_count` queries, all of them
// contiguous rows of `columns` 8-bit integers: out[row * query_count + query]. Needs columns <=
// kMaxDotColumns. The sums are integers, hence exact and equal on every SIMD target. Any alignment.
void DotProducts8(const int8_t* rows, size_t count, const int8_t* queries, size_t query_count,
                  size_t columns, int32_t* out) noexcept;

namespace ref {
void DotProducts8(const int8_t* rows, size_t count, const int8_t* queries, size_t query_count,
                  size_t columns, int32_t* out) noexcept;
}  // namespace ref

struct NearestSignature {
  uint32_t distance = 0;  // number of bits that differ from the query
  uint32_t age = 0;       // 1 is the last signature, 2 the one before it
};

// Returns the signature that differs from `query` in the fewest bits, the last one if several do.
// There are `count` > 0 signatures of `words` 64-bit words each; word w of signature i is
// signatures[w * stride + i]. Equal on every SIMD target.
NearestSignature FindNearest(const uint64_t* signatures, size_t stride, size_t words, size_t count,
                             const uint64_t* query) noexcept;

namespace ref {
NearestSignature FindNearest(const uint64_t* signatures, size_t stride, size_t words, size_t count,
                             const uint64_t* query) noexcept;
}  // namespace ref

// Sums, over all channels, of products of two rows' deviations.
struct DeviationProducts {
  float own = 0;    // product of the first row with itself
  float other = 0;  // product of the second row with itself
  float both = 0;   // product of the first row with the second
};

// Compares two rows of `count` channels by their deviations, (x - mean[c]) * inverse[c] in channel
// c. Channel c is added to sum c % 8, and the eight sums are added in order, so that the result has
// the same bits on every machine.
DeviationProducts ProductsOfDeviations(const float* a, const float* b, const float* mean,
                                       const float* inverse, size_t count) noexcept;

}  // namespace kv
