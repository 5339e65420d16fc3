// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv {

// The longest rows whose dot products fit 32 bits whatever the values: each term is at most 2^14.
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

}  // namespace kv
