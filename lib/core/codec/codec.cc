// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/codec.h"

#include <iterator>

namespace kv {
namespace {
constexpr std::string_view kEffortNames[] = {"compat", "fast", "default", "high", "max"};
}  // namespace

std::string_view Name(Effort effort) { return kEffortNames[static_cast<size_t>(effort)]; }

std::optional<Effort> ParseEffort(std::string_view name) {
  for (size_t i = 0; i < std::size(kEffortNames); ++i) {
    if (name == kEffortNames[i]) return static_cast<Effort>(i);
  }
  return std::nullopt;
}

ChunkGrid FindGrid(const ChunkShape& shape, uint64_t raw_bytes) {
  const DTypeInfo& info = Info(shape.dtype);
  uint64_t rows = 0, units = shape.units_per_head;
  if (shape.order == Order::kTokenHeadDim) {
    rows = shape.tokens;
    units *= shape.heads;
  } else if (shape.order == Order::kHeadTokenDim) {
    rows = shape.heads * shape.tokens;
  }
  // Shapes come from files and are used only if they explain every byte.
  if (rows > 0 && units > 0 && raw_bytes % rows == 0 && raw_bytes / rows % units == 0 &&
      raw_bytes / rows / units == info.block_bytes) {
    return {rows, units};
  }
  return {1, raw_bytes / info.block_bytes};
}

uint64_t HeadDim(const ChunkShape& shape) { return shape.heads > 1 ? shape.units_per_head : 0; }

}  // namespace kv
