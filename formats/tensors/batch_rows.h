// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/registry.h"

namespace kv {

// What a file's arrays say of its batch: all have as many rows, and all rows of all layers together
// are not too many.
class BatchOfFile {
 public:
  // Of one more array. Throws kInconsistent, kLimit.
  void Add(uint64_t rows);
  // Nothing before the first array.
  std::optional<uint64_t> rows() const { return rows_; }

 private:
  std::optional<uint64_t> rows_;
  uint64_t views_ = 0;
};

// Refuses a --batch that an array of so many rows does not have, and its absence where a caller
// wants one of several. Throws kUsage with the hint.
void RequireRow(const OpenOptions& options, uint64_t rows, bool has_batch_axis,
                std::string_view hint);

}  // namespace kv
