// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/codec.h"

// Transformed chunks (codec 32): values restored from coefficients of a learnt transform. All
// layers of a group share the coefficients, so an archive hands in everything. FORMAT.md has the
// grammar and the order of all operations.
namespace kv {

// The transform as one chunk sees it: the chunk's columns are adjacent features.
struct TransformedRows {
  const float* coefficients = nullptr;  // [token][component], multiplied by the step
  uint64_t components = 0;
  const float* vectors = nullptr;      // [component][feature], from the first column on
  uint64_t stride = 0;                 // features from a component to the next
  const float* mean = nullptr;         // one value for each column
  const Rotation* rotation = nullptr;  // rotation of keys, within each head; nullptr for V
  uint64_t head_dim = 0;
  uint64_t position = 0;  // of the first row
};

// Returns true for f16, bf16 and f32.
bool TakesTransform(DType dtype);

// Restores all rows of a chunk, [token][head][unit]. Throws kBadFrame for another order or size.
void RestoreRows(const ChunkShape& shape, const TransformedRows& rows, std::span<std::byte> raw);

// Rotates the heads of one row in place by `steps` positions; negative numbers count modulo 2^32.
class HeadTurner {
 public:
  HeadTurner(const Rotation& rotation, uint64_t head_dim);
  void Turn(uint32_t steps, std::span<float> row);

 private:
  const Rotation& rotation_;
  uint64_t head_dim_;
  Turner turner_;
  std::vector<float> cosines_, sines_;
};

// Converts values of one of these types, and back with rounding to nearest even.
std::vector<float> WidenRows(DType dtype, ByteSpan raw);
void NarrowRows(DType dtype, std::span<const float> values, std::span<std::byte> raw);

}  // namespace kv
