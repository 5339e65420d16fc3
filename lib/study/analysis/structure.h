// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/core/base/bytes.h"

namespace kv::analysis {

// What of a tensor is there twice or not at all.
struct Structure {
  uint64_t tokens = 0, channels = 0;
  uint64_t zero_rows = 0;           // every byte of the token is zero
  uint64_t trailing_zero_rows = 0;  // of them at the end: padding
  uint64_t repeated_rows =
      0;  // equal to an earlier row that is not zero, by hash; 0 for rows below 8 bytes
  uint64_t constant_channels = 0;  // the same in every token
  uint64_t zero_channels = 0;      // of them zero
};

// Takes rows of `units` storage units of `unit_bytes`.
class StructureFinder {
 public:
  StructureFinder(uint64_t units, uint32_t unit_bytes);
  void Add(ByteSpan rows, uint64_t tokens);
  Structure Finish() const;

 private:
  uint64_t units_;
  uint32_t unit_bytes_;
  Structure found_;
  Bytes first_, differs_;             // the first row; bits in which any later one is not the same
  std::vector<uint64_t> row_hashes_;  // of rows that are not zero
};

// How many values of an f32 cache are exactly those of a type of half the size.
struct Narrowness {
  uint64_t values = 0, exact_f16 = 0, exact_bf16 = 0;

  bool is_f16() const { return values > 0 && exact_f16 == values; }
  bool is_bf16() const { return values > 0 && exact_bf16 == values; }
};
void CountNarrow(ByteSpan floats, Narrowness& narrowness);

}  // namespace kv::analysis
