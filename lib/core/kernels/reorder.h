// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv {

// Copies a `rows` x `columns` grid of units of `unit_bytes` between two strided layouts (strides in
// bytes). Rows that are contiguous on both sides are copied by memcpy; transpositions proceed in
// tiles that stay in the cache. The two ranges must not overlap.
void CopyStrided2D(const std::byte* from, uint64_t from_row, uint64_t from_column, std::byte* to,
                   uint64_t to_row, uint64_t to_column, uint64_t rows, uint64_t columns,
                   uint32_t unit_bytes) noexcept;

}  // namespace kv
