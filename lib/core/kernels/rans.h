// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// Interleaved rANS over rows of byte symbols: 16, 32 or 64 lanes, lane = column mod lanes, static
// tables whose frequencies sum to 2048, and 31-bit states that are renormalised by 16-bit words.
// The table that codes a symbol depends on the symbol above it (the same column one row earlier) or
// is given for every symbol. lib/core/codec/context/FORMAT.md specifies the format. The method is
// J. Duda's ANS in the interleaved form of F. Giesen. rans.cc decodes, rans_encode.cc encodes.
namespace kv {

constexpr uint32_t kRansLanes = 16;  // least number of lanes of a grid
constexpr uint32_t kMaxRansLanes = 64;
constexpr uint32_t kRansTotalBits = 11;
constexpr uint32_t kRansTotal = 1u << kRansTotalBits;
// States are in [2^15, 2^31). The lower bound leaves room for an exact division by a 32-bit
// reciprocal.
constexpr uint32_t kRansLow = 1u << 15;
constexpr size_t kMaxRansTables = 16;
// The encoder stores whole vectors and may overwrite this many words before its stream.
constexpr size_t kRansRoom = 8;

// One state per lane; entries beyond the number of lanes are unused.
using RansStates = std::array<uint32_t, kMaxRansLanes>;

// A state must be below f << kRansLimitShift before a symbol of frequency f is added to it.
constexpr uint32_t kRansLimitShift = 31 - kRansTotalBits;

// The constants for encoding one symbol with one table. The division by its frequency is replaced
// by a multiplication by a reciprocal.
struct RansEncoderSymbol {
  uint32_t reciprocal = 0;  // ceil(2^shift / frequency)
  uint32_t fields = 0;      // shift << 23 | complement << 12 | bias

  constexpr uint32_t shift() const { return fields >> 23; }
  constexpr uint32_t complement() const { return fields >> 12 & 0x7ff; }  // 2048 - frequency
  constexpr uint32_t bias() const { return fields & 0xfff; }
};
RansEncoderSymbol MakeRansEncoderSymbol(uint32_t start, uint32_t frequency) noexcept;

// One of the 2048 slots of a table: symbol << 23 | (frequency - 1) << 12 | (slot - start). A single
// lookup yields everything that a decoding step needs.
using RansSlot = uint32_t;
inline RansSlot MakeRansSlot(uint32_t symbol, uint32_t frequency, uint32_t offset) {
  return symbol << 23 | (frequency - 1) << 12 | offset;
}

struct RansGrid {
  size_t rows = 0, columns = 0;
  uint32_t lanes = kRansLanes;
};
// Returns the number of lanes for a grid. More lanes decode faster, but their states take bytes: 32
// from `many` symbols on and 64 from `more` on, if that divides the columns or there is only one
// row.
uint32_t RansLanesFor(RansGrid grid, size_t many, size_t more) noexcept;

// Tells which table codes each symbol: tables[i] for symbol i if `tables` is not null, otherwise
// table_of[the symbol above]. The symbols above row 0 are `first_row`, one per column, or
// first_above everywhere if that is null.
struct RansContexts {
  const uint8_t* table_of = nullptr;  // 256 entries
  uint8_t first_above = 0;
  const uint8_t* tables = nullptr;
  const uint8_t* first_row = nullptr;
};

// Encodes the whole grid from back to front. `symbols_of` holds tables * 256 entries. The words are
// written before `words_end`, where there must be room for kRansRoom more words than there are
// symbols. Returns the start of the stream. `states`, all in [2^15, 2^31), hold on entry the states
// that a decoder will end with, and on return those that it starts from.
uint16_t* RansEncode(const uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                     const RansEncoderSymbol* symbols_of, uint16_t* words_end,
                     RansStates& states) noexcept;

// Decodes a grid. `slots` holds tables * 2048 entries; the words are little-endian, at any address.
// With `table_of` there must be at least `lanes` columns, or only one row. Returns the number of
// words read, or SIZE_MAX if the stream is too short. The states carry over between calls, so that
// with given tables a grid may be decoded row by row.
size_t RansDecode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const std::byte* words, size_t word_count,
                  RansStates& states) noexcept;

namespace ref {
// The specification of RansDecode: one symbol after another.
size_t RansDecode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const std::byte* words, size_t word_count,
                  RansStates& states) noexcept;
}  // namespace ref

}  // namespace kv
