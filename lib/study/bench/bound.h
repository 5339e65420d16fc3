// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/codec/chunk.h"

// How few bits models of different kinds need for a chunk, so that the distance of the levels from
// them is known. All that a decoder would need is counted: what a static model says of itself, and
// what an adaptive one loses while it learns.
namespace kv {

struct ChunkBounds {
  // One table for sign, exponent and the next bits; the rest as it is.
  double alone_bits = 0;
  // A table for each sign and exponent of the value above.
  double above_bits = 0;
  // An adaptive mixture: the distributions of level max at three widths, and counters of what came
  // before at all, below such a value, and in the channel; mixed bit by bit by what they were
  // worth.
  double mixed_bits = 0;
};

// Nothing for what is not f16 or bf16, or has too few rows to learn from.
std::optional<ChunkBounds> ComputeBounds(const ChunkShape& shape, ByteSpan raw);

}  // namespace kv
