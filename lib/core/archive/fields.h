// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by description.cc

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "lib/core/archive/records.h"

// What heads and the source table are made of, and the description in the latter.
namespace kv::kvz {

void AppendText(std::string_view text, ByteWriter& out);
std::string ReadText(ByteReader& in, std::string_view field);
// Counts are bounded by the bytes left, an item having at least `item_bytes`. Throws kTruncated.
uint32_t ReadCount(ByteReader& in, uint64_t item_bytes, std::string_view field);

// Throws kBadField for a value above the last one.
template <typename E>
E ReadEnum(ByteReader& in, uint8_t last, std::string_view field) {
  const uint8_t value = in.U8(field);
  if (value > last) {
    throw Error(Finding::kBadField, fmt::format("{} {}: at most {} expected", field, value, last))
        .At(in.offset() - 1);
  }
  return static_cast<E>(value);
}

// Drops the cells that no reader would take.
void DropCellsBeyondLimit(std::vector<CellGroup>& groups);
// The snapshot as its reader described it.
void AppendDescription(const SourceTable& table, ByteWriter& out);
void ReadDescription(ByteReader& in, SourceTable& table);

}  // namespace kv::kvz
