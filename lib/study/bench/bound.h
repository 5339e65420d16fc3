// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/codec/chunk.h"

// Bounds on the bits that a chunk needs, by models of several kinds, to show how far the levels are
// from them. Everything that a decoder would need is counted: the tables of a static model, and the
// bits that an adaptive model loses while it learns.
namespace kv {

struct ChunkBounds {
  // Bits with one table for sign, exponent and the next bits; the rest is stored as it is.
  double alone_bits = 0;
  // Bits with a table for each sign and exponent of the value in the row above.
  double above_bits = 0;
  // Bits with an adaptive mixture, bit by bit, of the distributions of level max at three widths
  // and of counters without context, by the value above and by channel, weighted by how well they
  // predicted.
  double mixed_bits = 0;
};

// Returns nothing if the values are not f16 or bf16, or if there are too few rows to learn from.
std::optional<ChunkBounds> ComputeBounds(const ChunkShape& shape, ByteSpan raw);

}  // namespace kv
