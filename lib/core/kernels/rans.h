// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// Interleaved rANS over rows of byte symbols: 16, 32 or 64 lanes, lane = column mod lanes, static
// tables whose frequencies sum to 2048, 31-bit states renormalised in 16-bit words. Which table
// codes a symbol may depend on the symbol above it (the same column one row earlier) or be given
// for every symbol. Format: lib/core/codec/prev/FORMAT.md; after J. Duda's ANS in the interleaved
// form of F. Giesen.
namespace kv {

constexpr uint32_t kRansLanes = 16;  // the fewest, which any grid may have
constexpr uint32_t kMaxRansLanes = 64;
constexpr uint32_t kRansTotalBits = 11;
constexpr uint32_t kRansTotal = 1u << kRansTotalBits;
// States live in [2^15, 2^31). The lower bound leaves room for an exact 32-bit reciprocal division.
constexpr uint32_t kRansLow = 1u << 15;
constexpr size_t kMaxRansTables = 16;
constexpr size_t kRansRoom = 8;  // words that an encoder may write before its stream

using RansStates = std::array<uint32_t, kMaxRansLanes>;  // the first of them, one per lane

// A symbol of frequency f is put into states below f << kRansLimitShift.
constexpr uint32_t kRansLimitShift = 31 - kRansTotalBits;

// How one symbol of one table is encoded: division by its frequency as a multiplication.
struct RansEncoderSymbol {
  uint32_t reciprocal = 0;  // ceil(2^shift / frequency)
  uint32_t fields = 0;      // shift << 23 | complement << 12 | bias

  constexpr uint32_t shift() const { return fields >> 23; }
  constexpr uint32_t complement() const { return fields >> 12 & 0x7ff; }  // 2048 - frequency
  constexpr uint32_t bias() const { return fields & 0xfff; }
};
RansEncoderSymbol MakeRansEncoderSymbol(uint32_t start, uint32_t frequency) noexcept;

// One of the 2048 slots of a table: symbol << 23 | (frequency - 1) << 12 | (slot - start).
using RansSlot = uint32_t;
inline RansSlot MakeRansSlot(uint32_t symbol, uint32_t frequency, uint32_t offset) {
  return symbol << 23 | (frequency - 1) << 12 | offset;
}

struct RansGrid {
  size_t rows = 0, columns = 0;
  uint32_t lanes = kRansLanes;
};
// How many lanes serve a grid: the more, the faster it is decoded, but states take bytes. 32 from
// `many` symbols on, 64 from `more`, if rows are whole groups of them.
uint32_t RansLanesFor(RansGrid grid, size_t many, size_t more) noexcept;

// Tables per symbol: by the symbol above, `table_of[above]` (row 0 uses table_of[first_above]), or
// as listed in `tables`, one byte per symbol, when that is not null.
struct RansContexts {
  const uint8_t* table_of = nullptr;  // 256 entries
  uint8_t first_above = 0;
  const uint8_t* tables = nullptr;
};

// Encodes the whole grid back to front. `symbols_of` holds tables * 256 entries. Words go to what
// lies before `words_end`, which must have room for kRansRoom more than there are symbols; returns
// where the stream begins. `states` are in [2^15, 2^31); those that a decoder ends with become
// those that it starts from.
uint16_t* RansEncode(const uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                     const RansEncoderSymbol* symbols_of, uint16_t* words_end,
                     RansStates& states) noexcept;

// Decodes a grid; `slots` holds tables * 2048 entries; words are little-endian, at any address.
// With `table_of` contexts, columns must be at least `lanes` unless there is one row. Returns the
// words read, or SIZE_MAX if the stream is too short. States carry over, so with listed tables a
// grid may be decoded row by row.
size_t RansDecode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const std::byte* words, size_t word_count,
                  RansStates& states) noexcept;

namespace ref {
// The specification of RansDecode, one symbol after another.
size_t RansDecode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const std::byte* words, size_t word_count,
                  RansStates& states) noexcept;
}  // namespace ref

}  // namespace kv
