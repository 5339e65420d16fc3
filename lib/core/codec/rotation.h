// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/core/base/bytes.h"

// Rotary embedding as a codec sees it: pairs of channels that turn from row to row.
namespace kv {

struct Rotation {
  // Between the partners of a pair: 1 (2i and 2i + 1) or half a head (i and i + distance).
  uint32_t distance = 1;
  // In 2^-32 turns per row, one per pair of a head; empty if nothing is known to turn. With
  // distance > 1 there are `distance` pairs.
  std::vector<uint32_t> turns;
};

// Finds it in keys by trying the usual ways to lay out and space the angles. `values` are rows x
// columns half floats, taken times `scale` (see LmsLoad); `head_dim` is 0 if not known. The rows
// are supposed to be successive positions.
Rotation FindRotation(ByteSpan values, bool bfloat, float scale, uint64_t rows, uint64_t columns,
                      uint64_t head_dim);

// Throws kBadFrame, at `offset`, for what a row of `columns` cannot have.
void CheckRotation(uint64_t distance, uint64_t turns, uint64_t columns, uint64_t offset);
// u16 distance of partners, u16 number of turns, u32 each.
void WriteRotation(const Rotation& rotation, ByteWriter& out);
// Throws kTruncated, and kBadFrame for what a row of `columns` cannot have.
Rotation ReadRotation(ByteReader& reader, uint64_t columns);

// The value of each channel's partner, `distance` away; 0 where it has none.
void CopyPartners(uint32_t distance, const float* x, uint64_t columns, float* out);

// Turns rows by whole numbers of steps, negative ones modulo 2^32. Angles come from a table
// of 4096, the operations are plain floats in a fixed order: archives depend on every bit.
class Turner {
 public:
  Turner(const Rotation& rotation, uint64_t columns);
  // The cosine and sine of every channel after so many steps.
  void Angles(uint32_t steps, float* cosines, float* sines);
  // `out` is `x` turned; the same where nothing turns.
  void Turn(uint32_t steps, const float* x, float* out);

 private:
  const Rotation& rotation_;
  uint64_t columns_;
  std::vector<float> cosines_, sines_, partners_, signs_;
};

}  // namespace kv
