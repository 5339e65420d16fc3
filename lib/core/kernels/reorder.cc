// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/reorder.h"

#include <algorithm>
#include <cstring>

namespace kv {
namespace {

// 32 x 32 units of two bytes touch 64 cache lines on either side, which fit the first-level cache.
constexpr uint64_t kTile = 32;

template <uint32_t kUnitBytes>
void CopyTiles(const std::byte* from, uint64_t from_row, uint64_t from_column, std::byte* to,
               uint64_t to_row, uint64_t to_column, uint64_t rows, uint64_t columns,
               uint32_t unit_bytes) noexcept {
  const uint32_t size = kUnitBytes != 0 ? kUnitBytes : unit_bytes;
  for (uint64_t row0 = 0; row0 < rows; row0 += kTile) {
    const uint64_t row1 = std::min(rows, row0 + kTile);
    for (uint64_t column0 = 0; column0 < columns; column0 += kTile) {
      const uint64_t column1 = std::min(columns, column0 + kTile);
      for (uint64_t row = row0; row < row1; ++row) {
        const std::byte* source = from + row * from_row;
        std::byte* target = to + row * to_row;
        for (uint64_t column = column0; column < column1; ++column) {
          std::memcpy(target + column * to_column, source + column * from_column, size);
        }
      }
    }
  }
}

}  // namespace

void CopyStrided2D(const std::byte* from, uint64_t from_row, uint64_t from_column, std::byte* to,
                   uint64_t to_row, uint64_t to_column, uint64_t rows, uint64_t columns,
                   uint32_t unit_bytes) noexcept {
  const uint64_t row_bytes = columns * unit_bytes;
  if (from_column == unit_bytes && to_column == unit_bytes) {
    if (from_row == row_bytes && to_row == row_bytes) {
      std::memcpy(to, from, rows * row_bytes);
      return;
    }
    for (uint64_t row = 0; row < rows; ++row)
      std::memcpy(to + row * to_row, from + row * from_row, row_bytes);
    return;
  }
  if (from_row == unit_bytes && to_row == unit_bytes) {
    const uint64_t column_bytes = rows * unit_bytes;
    for (uint64_t column = 0; column < columns; ++column) {
      std::memcpy(to + column * to_column, from + column * from_column, column_bytes);
    }
    return;
  }
  // Constant unit sizes turn the memcpy of a unit into a single load and store.
  const auto tiles = unit_bytes == 1   ? CopyTiles<1>
                     : unit_bytes == 2 ? CopyTiles<2>
                     : unit_bytes == 4 ? CopyTiles<4>
                                       : CopyTiles<0>;
  tiles(from, from_row, from_column, to, to_row, to_column, rows, columns, unit_bytes);
}

}  // namespace kv
