// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/bytes.h"

// Coefficients of a learnt transform as one rANS stream for each block of tokens: one step for all
// components, and a static table of symbols for each, which belongs to the transform. FORMAT.md
// specifies the stream.
namespace kv {

// Tokens whose coefficients form one stream.
inline constexpr uint64_t kStreamTokens = 128;

// One component: frequencies of the symbols -reach to reach, then of the escape. They sum to 2048,
// and none is 0.
struct StepTable {
  uint32_t reach = 0;
  std::vector<uint16_t> frequencies;

  uint32_t symbols() const { return 2 * reach + 2; }
  uint32_t escape() const { return symbols() - 1; }
  // Returns the place of a value among the frequencies.
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

// Encodes `values`, [token][table], in units of the step, of at most kStreamTokens.
Bytes EncodeCoefficients(const StepCode& code, std::span<const int16_t> values, uint64_t tokens);
// Fills `values`. Throws kTruncated, kTrailingBytes, and kBadFrame for a stream that the encoder
// cannot have written.
void DecodeCoefficients(const StepCode& code, ByteSpan stream, uint64_t tokens,
                        std::span<int16_t> values);

}  // namespace kv
