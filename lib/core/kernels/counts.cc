// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Histograms (counts.h). Incrementing a counter twice in a row makes the second load wait until the
// first store can be forwarded, which takes longer than the rest of the loop. All functions here
// therefore alternate between several tables and sum them at the end. The indices of symbols in
// context are computed on vectors first, block by block.

#include "lib/core/kernels/counts.h"

#include <algorithm>

#include "lib/core/base/bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/counts.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "lib/core/kernels/rans_lookup-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Counts precomputed cells. Neighbours go to different tables, because incrementing one counter
// twice in a row would stall on store-to-load forwarding.
template <size_t kTurns>
void CountCells(const uint16_t* at, size_t count, size_t cells, uint32_t* counts) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    // Loads four cells at once: separate loads would take as long as the counting.
    const auto four = LoadLE<uint64_t>(reinterpret_cast<const std::byte*>(at + i));
    ++counts[four & 0xffff];
    ++counts[1 % kTurns * cells + (four >> 16 & 0xffff)];
    ++counts[2 % kTurns * cells + (four >> 32 & 0xffff)];
    ++counts[3 % kTurns * cells + (four >> 48)];
  }
  for (; i < count; ++i) ++counts[at[i]];
}

// Number of cells computed before they are counted; the buffer stays in the first-level cache.
constexpr size_t kBlock = 512;

template <size_t kTurns>
void CountRows(const CountedRows& rows, const CellMaker& make_cells, size_t cells,
               uint32_t* counts) {
  uint16_t at[kBlock];
  // If every row counts, all rows are treated as a single one: the row above is then just `columns`
  // symbols earlier.
  const bool all = rows.row_step == 1;
  const size_t length = all ? (rows.rows - 1) * rows.columns : rows.columns;
  for (size_t row = 1; row < rows.rows; row += all ? rows.rows : rows.row_step) {
    const uint8_t* symbols = rows.symbols + row * rows.columns;
    for (size_t begin = 0; begin < length; begin += kBlock) {
      const size_t count = std::min(kBlock, length - begin);
      make_cells(symbols + begin - rows.columns, symbols + begin, count, rows.cut, at);
      CountCells<kTurns>(at, count, cells, counts);
    }
  }
}

void Count(const CountedRows& rows, const uint32_t* base_of, size_t turns, size_t cells,
           uint32_t* counts) {
  const CellMaker make_cells(base_of);
  const auto count = turns == 4 ? CountRows<4> : turns == 2 ? CountRows<2> : CountRows<1>;
  count(rows, make_cells, cells, counts);
}

// Counts pairs of context and symbol; a cell is their concatenation.
template <size_t kTurns>
void CountPairs(const uint8_t* contexts, const uint8_t* symbols, size_t count, int bits,
                size_t cells, uint32_t* counts) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<uint16_t, 32> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t step = hn::Lanes(d);
  uint16_t at[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t some = std::min(kBlock, count - begin);
    const uint8_t *context = contexts + begin, *symbol = symbols + begin;
    size_t i = 0;
    for (; i + step <= some; i += step) {
      const auto base = hn::ShiftLeftSame(hn::PromoteTo(d, hn::LoadU(d8, context + i)), bits);
      hn::StoreU(hn::Or(base, hn::PromoteTo(d, hn::LoadU(d8, symbol + i))), d, at + i);
    }
    for (; i < some; ++i) at[i] = static_cast<uint16_t>(context[i] << bits | symbol[i]);
    CountCells<kTurns>(at, some, cells, counts);
  }
}

void CountWith(const uint8_t* contexts, const uint8_t* symbols, size_t count, int bits,
               size_t turns, size_t cells, uint32_t* counts) {
  const auto of_turns = turns == 4 ? CountPairs<4> : turns == 2 ? CountPairs<2> : CountPairs<1>;
  of_turns(contexts, symbols, count, bits, cells, counts);
}

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Count);
HWY_EXPORT(CountWith);

void CountInContext(const CountedRows& rows, const uint32_t* base_of, size_t turns, size_t cells,
                    uint32_t* counts) noexcept {
  HWY_DYNAMIC_DISPATCH(Count)(rows, base_of, turns, cells, counts);
}
void CountWithContexts(const uint8_t* contexts, const uint8_t* symbols, size_t count, int bits,
                       size_t turns, size_t cells, uint32_t* counts) noexcept {
  HWY_DYNAMIC_DISPATCH(CountWith)(contexts, symbols, count, bits, turns, cells, counts);
}

namespace ref {

void CountInContext(const CountedRows& rows, const uint32_t* base_of, size_t, size_t,
                    uint32_t* counts) noexcept {
  for (size_t row = 1; row < rows.rows; row += rows.row_step) {
    const uint8_t* symbols = rows.symbols + row * rows.columns;
    for (size_t c = 0; c < rows.columns; ++c) {
      const uint8_t above = (symbols - rows.columns)[c];
      ++counts[base_of[above] + (uint32_t{symbols[c]} >> rows.cut)];
    }
  }
}

void CountWithContexts(const uint8_t* contexts, const uint8_t* symbols, size_t count, int bits,
                       size_t, size_t, uint32_t* counts) noexcept {
  for (size_t i = 0; i < count; ++i) ++counts[uint32_t{contexts[i]} << bits | symbols[i]];
}

}  // namespace ref

namespace {

// Enough tables that equal bytes in a row never meet a pending store.
constexpr size_t kTables = 4;
// The tables count in 32 bits, so a round must be shorter than 4 GiB.
constexpr size_t kRoundBytes = size_t{1} << 30;

void CountRound(const std::byte* from, size_t size, uint32_t tables[kTables][256]) noexcept {
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const uint64_t eight = LoadLE<uint64_t>(from + i);
    for (size_t b = 0; b < 8; ++b) ++tables[b % kTables][eight >> (8 * b) & 0xff];
  }
  for (; i < size; ++i) ++tables[0][static_cast<size_t>(from[i])];
}

}  // namespace

void CountBytes(const std::byte* from, size_t size, uint64_t counts[256]) noexcept {
  while (size > 0) {
    const size_t round = std::min(size, kRoundBytes);
    uint32_t tables[kTables][256] = {};
    CountRound(from, round, tables);
    for (size_t value = 0; value < 256; ++value) {
      for (const auto& table : tables) counts[value] += table[value];
    }
    from += round;
    size -= round;
  }
}

void CountWords(const std::byte* from, size_t words, uint64_t counts[65536]) noexcept {
  // The words of a tensor spread over thousands of counters, so that equal neighbours are rare and
  // one table suffices.
  for (size_t i = 0; i < words; ++i) ++counts[LoadLE<uint16_t>(from + 2 * i)];
}

}  // namespace kv
#endif  // HWY_ONCE
