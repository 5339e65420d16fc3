// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/context_count.h"

#include <algorithm>

#include "lib/core/base/bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/context_count.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "lib/core/kernels/rans_lookup-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {

template <size_t kTurns>
void CountCells(const uint16_t* at, size_t count, size_t cells, uint32_t* counts) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    // Four at once: a load for each would take as long as counting it.
    const auto four = LoadLE<uint64_t>(reinterpret_cast<const std::byte*>(at + i));
    ++counts[four & 0xffff];
    ++counts[1 % kTurns * cells + (four >> 16 & 0xffff)];
    ++counts[2 % kTurns * cells + (four >> 32 & 0xffff)];
    ++counts[3 % kTurns * cells + (four >> 48)];
  }
  for (; i < count; ++i) ++counts[at[i]];
}

template <size_t kTurns>
void CountRows(const CountedRows& rows, const CellMaker& make_cells, size_t cells,
               uint32_t* counts) {
  constexpr size_t kBlock = 512;
  uint16_t at[kBlock];
  // Without a step all rows are one.
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

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Count);

void CountInContext(const CountedRows& rows, const uint32_t* base_of, size_t turns, size_t cells,
                    uint32_t* counts) noexcept {
  HWY_DYNAMIC_DISPATCH(Count)(rows, base_of, turns, cells, counts);
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

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
