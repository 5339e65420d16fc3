// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/codec/codec.h"

// Coefficients of a learnt transform, and the chunks of codec 32, whose values they restore. Each
// block of tokens has one rANS stream of coefficients. The transform gives one step for all
// components, and a static table of symbols for each. All layers of a group share the coefficients,
// so the archive passes them to each chunk. FORMAT.md has the grammar and the order of all
// operations.
namespace kv {

// Tokens whose coefficients form one stream.
inline constexpr uint64_t kStreamTokens = 128;

// Table of one component: frequencies of the values -reach to reach, then of the escape. They sum
// to 2048, and none is 0.
struct StepTable {
  uint32_t reach = 0;
  std::vector<uint16_t> frequencies;

  uint32_t symbols() const { return 2 * reach + 2; }
  uint32_t escape() const { return symbols() - 1; }
  // Returns the index of a value's frequency.
  uint32_t Find(int32_t value) const {
    const auto most = static_cast<int32_t>(reach);
    return value < -most || value > most ? escape() : static_cast<uint32_t>(value + most);
  }
};

// One step for all components of a matrix, and their tables; components after the last table are
// dropped.
struct StepCode {
  float step = 1;
  std::vector<StepTable> tables;
};

// Encodes `values`, [token][table], given in units of the step, for at most kStreamTokens tokens.
Bytes EncodeCoefficients(const StepCode& code, std::span<const int16_t> values, uint64_t tokens);
// Fills `values`. Throws kTruncated, kTrailingBytes, and kBadFrame for a stream that the encoder
// cannot have written.
void DecodeCoefficients(const StepCode& code, ByteSpan stream, uint64_t tokens,
                        std::span<int16_t> values);

// The transform as one chunk sees it: the chunk's columns are adjacent features.
struct TransformedRows {
  const float* coefficients = nullptr;  // [token][component], multiplied by the step
  uint64_t components = 0;
  const float* vectors = nullptr;      // [component][feature], from the first column on
  uint64_t stride = 0;                 // features from a component to the next
  const float* mean = nullptr;         // one value for each column
  const Rotation* rotation = nullptr;  // rotation of keys, within each head; nullptr for V
  uint64_t head_dim = 0;
  uint64_t position = 0;  // position of the first row
};

// Returns true for f16, bf16 and f32.
bool TakesTransform(DType dtype);

// Restores all rows of a chunk, [token][head][unit]. Throws kBadFrame for another order or size.
void RestoreRows(const ChunkShape& shape, const TransformedRows& rows, std::span<std::byte> raw);

// Rotates the heads of one row in place by `steps` positions; negative numbers count modulo 2^32.
class HeadRotator {
 public:
  HeadRotator(const Rotation& rotation, uint64_t head_dim);
  void Rotate(uint32_t steps, std::span<float> row);

 private:
  const Rotation& rotation_;
  uint64_t head_dim_;
  Rotator rotator_;
  std::vector<float> cosines_, sines_;
};

std::vector<float> WidenRows(DType dtype, ByteSpan raw);

}  // namespace kv
