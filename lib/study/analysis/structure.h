// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/core/base/bytes.h"

namespace kv::analysis {

// Counts the rows and channels of a tensor that repeat or are zero.
struct Structure {
  uint64_t tokens = 0, channels = 0;
  uint64_t zero_rows = 0;           // tokens of which every byte is zero
  uint64_t trailing_zero_rows = 0;  // those of them at the end, which are padding
  // Rows equal, by hash, to an earlier row that is not zero. 0 if rows are shorter than 8 bytes.
  uint64_t repeated_rows = 0;
  uint64_t constant_channels = 0;  // equal in all tokens
  uint64_t zero_channels = 0;      // those of them that are zero
};

// Finds the structure of rows of `units` storage units of `unit_bytes` bytes each.
class StructureFinder {
 public:
  StructureFinder(uint64_t units, uint32_t unit_bytes);
  void Add(ByteSpan rows, uint64_t tokens);
  Structure Finish() const;

 private:
  uint64_t units_;
  uint32_t unit_bytes_;
  Structure found_;
  Bytes first_, differs_;             // the first row; the bits in which any later row differs
  std::vector<uint64_t> row_hashes_;  // of rows that are not zero
};

// Counts the values of an f32 cache that a type of half the size represents exactly.
struct Narrowness {
  uint64_t values = 0, exact_f16 = 0, exact_bf16 = 0;

  bool is_f16() const { return values > 0 && exact_f16 == values; }
  bool is_bf16() const { return values > 0 && exact_bf16 == values; }
};
// Adds little-endian floats to the counts.
void CountNarrow(ByteSpan floats, Narrowness& narrowness);

}  // namespace kv::analysis
