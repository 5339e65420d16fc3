// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/kernels/rans.h"

#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/kernels/rans.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Eight 32-bit lanes in one vector; smaller targets take the scalar path.
#if HWY_MAX_BYTES >= 32 && !HWY_HAVE_SCALABLE
#define KV_RANS_VECTOR 1
#else
#define KV_RANS_VECTOR 0
#endif

#if KV_RANS_VECTOR
// The renormalisation step gives consecutive words to the lanes of a mask: entry m holds, per lane,
// how many lower lanes of m are set.
struct SpreadTable {
  alignas(32) uint32_t ranks[256][8];
  constexpr SpreadTable() : ranks() {
    for (int mask = 0; mask < 256; ++mask) {
      uint32_t rank = 0;
      for (int lane = 0; lane < 8; ++lane) {
        ranks[mask][lane] = rank;
        rank += (mask >> lane) & 1;
      }
    }
  }
};
constexpr SpreadTable kSpread;
#endif

template <bool kGivenTables>
size_t DecodeGrid(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const uint16_t* words, size_t word_count,
                  RansStates& states) {
#if KV_RANS_VECTOR
  const hn::CappedTag<uint32_t, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const hn::Rebind<uint16_t, decltype(d)> d16;

  alignas(32) uint32_t base_of[256];  // table_of, scaled to slots
  if (!kGivenTables) {
    for (int s = 0; s < 256; ++s) base_of[s] = uint32_t{contexts.table_of[s]} << kRansTotalBits;
  }
  auto low = hn::LoadU(d, states.data());
  auto high = hn::LoadU(d, states.data() + 8);
  const auto total_mask = hn::Set(d, kRansTotal - 1);
  const auto bound = hn::Set(d, kRansLow);
  const auto* table = reinterpret_cast<const uint32_t*>(slots);
  size_t used = 0;

  // Decodes eight symbols; both halves of a group are independent up to the words they take.
  const auto step = [&](auto& state, auto base) HWY_ATTR {
    const auto slot = hn::And(state, total_mask);
    const auto entry = hn::GatherIndex(d, table, hn::BitCast(di, hn::Add(base, slot)));
    const auto frequency = hn::Add(hn::And(hn::ShiftRight<12>(entry), total_mask), hn::Set(d, 1));
    const auto offset = hn::And(entry, hn::Set(d, 0xfff));
    state = hn::Add(hn::Mul(hn::ShiftRight<kRansTotalBits>(state), frequency), offset);
    return hn::ShiftRight<23>(entry);
  };
  const auto refill = [&](auto& state) HWY_ATTR {
    const auto needs = hn::Lt(hn::BitCast(di, state), hn::BitCast(di, bound));
    uint8_t bits[8] = {};
    hn::StoreMaskBits(di, needs, bits);
    const auto next = hn::PromoteTo(d, hn::LoadU(d16, words + used));
    const auto spread = hn::TableLookupLanes(next, hn::SetTableIndices(d, kSpread.ranks[bits[0]]));
    const auto filled = hn::Or(hn::ShiftLeft<16>(state), spread);
    state = hn::IfThenElse(hn::RebindMask(d, needs), filled, state);
    used += static_cast<size_t>(std::popcount(bits[0]));
  };
  const auto bases = [&](const uint8_t* from) HWY_ATTR {
    const auto wide = hn::PromoteTo(d, hn::LoadU(d8, from));
    if (kGivenTables) return hn::ShiftLeft<kRansTotalBits>(wide);
    return hn::GatherIndex(d, base_of, hn::BitCast(di, wide));
  };

  const uint32_t first_base = kGivenTables ? 0 : base_of[contexts.first_above];
  for (size_t row = 0; row < grid.rows; ++row) {
    uint8_t* out = symbols + row * grid.columns;
    const uint8_t* context =
        kGivenTables ? contexts.tables + row * grid.columns : out - grid.columns;
    size_t column = 0;
    for (; column + kRansLanes <= grid.columns && used + kRansLanes <= word_count;
         column += kRansLanes) {
      auto base_low = hn::Set(d, first_base), base_high = base_low;
      if (kGivenTables || row > 0) {
        base_low = bases(context + column);
        base_high = bases(context + column + 8);
      }
      const auto symbol_low = step(low, base_low);
      const auto symbol_high = step(high, base_high);
      refill(low);
      refill(high);
      hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, symbol_low)), d8, out + column);
      hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, symbol_high)), d8, out + column + 8);
    }
    if (column == grid.columns) continue;
    // A last partial group, or the last words of the stream: one symbol at a time.
    hn::StoreU(low, d, states.data());
    hn::StoreU(high, d, states.data() + 8);
    for (; column < grid.columns; ++column) {
      uint32_t base = first_base;
      if (kGivenTables) {
        base = uint32_t{context[column]} << kRansTotalBits;
      } else if (row > 0) {
        base = base_of[context[column]];
      }
      uint32_t& state = states[column % kRansLanes];
      const RansSlot entry = slots[base + (state & (kRansTotal - 1))];
      state =
          (state >> kRansTotalBits) * (((entry >> 12) & (kRansTotal - 1)) + 1) + (entry & 0xfff);
      if (state < kRansLow) {
        if (used == word_count) return SIZE_MAX;
        state = state << 16 | words[used++];
      }
      out[column] = static_cast<uint8_t>(entry >> 23);
    }
    low = hn::LoadU(d, states.data());
    high = hn::LoadU(d, states.data() + 8);
  }
  hn::StoreU(low, d, states.data());
  hn::StoreU(high, d, states.data() + 8);
  return used;
#else
  return ref::RansDecode(symbols, grid, contexts, slots, words, word_count, states);
#endif
}

size_t Decode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts, const RansSlot* slots,
              const uint16_t* words, size_t word_count, RansStates& states) {
  return contexts.tables != nullptr
             ? DecodeGrid<true>(symbols, grid, contexts, slots, words, word_count, states)
             : DecodeGrid<false>(symbols, grid, contexts, slots, words, word_count, states);
}

// Scalar code: what a vector gains on the arithmetic it loses on gathering the parameters. It is
// compiled for every target all the same, since shifts by a variable are cheaper on some.
template <bool kGivenTables>
uint16_t* EncodeGrid(const uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                     const RansEncoderSymbol* symbols_of, uint16_t* words_end,
                     RansStates& all_states) {
  const RansEncoderSymbol* table_at[256] = {};  // table_of, scaled to symbols
  if (!kGivenTables) {
    for (int s = 0; s < 256; ++s) table_at[s] = symbols_of + 256 * size_t{contexts.table_of[s]};
  }
  RansStates states;
  states.fill(kRansLow);
  uint16_t* out = words_end;
  const auto put = [&](const RansEncoderSymbol& symbol, uint32_t& kept) HWY_ATTR {
    // Written always, kept only if needed: no branch to mispredict.
    uint32_t state = kept;
    const bool full = state >= symbol.limit;
    out[-1] = static_cast<uint16_t>(state);
    out -= full;
    state = full ? state >> 16 : state;
    const auto quotient =
        static_cast<uint32_t>((uint64_t{state} * symbol.reciprocal) >> (32 + symbol.shift));
    kept = state + symbol.bias + quotient * symbol.complement;
  };
  for (size_t row = grid.rows; row-- > 0;) {
    const uint8_t* in = symbols + row * grid.columns;
    const uint8_t* context =
        kGivenTables ? contexts.tables + row * grid.columns : in - grid.columns;
    const auto table = [&](size_t column) HWY_ATTR {
      if (kGivenTables) return symbols_of + 256 * size_t{context[column]};
      return table_at[row > 0 ? context[column] : contexts.first_above];
    };
    size_t column = grid.columns;
    while (column % kRansLanes != 0) {
      --column;
      put(table(column)[in[column]], states[column % kRansLanes]);
    }
    if (!kGivenTables && row == 0) {
      while (column-- > 0) put(table(column)[in[column]], states[column % kRansLanes]);
      continue;
    }
    while (column > 0) {
      column -= kRansLanes;
      for (size_t lane = kRansLanes; lane-- > 0;) {
        const uint8_t above = context[column + lane];
        const RansEncoderSymbol* at =
            kGivenTables ? symbols_of + 256 * size_t{above} : table_at[above];
        put(at[in[column + lane]], states[lane]);
      }
    }
  }
  all_states = states;
  return out;
}

uint16_t* Encode(const uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                 const RansEncoderSymbol* symbols_of, uint16_t* words_end, RansStates& states) {
  return contexts.tables != nullptr
             ? EncodeGrid<true>(symbols, grid, contexts, symbols_of, words_end, states)
             : EncodeGrid<false>(symbols, grid, contexts, symbols_of, words_end, states);
}

#undef KV_RANS_VECTOR
}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Decode);
HWY_EXPORT(Encode);

RansEncoderSymbol MakeRansEncoderSymbol(uint32_t start, uint32_t frequency) noexcept {
  RansEncoderSymbol symbol{};
  symbol.limit = frequency << (31 - kRansTotalBits);
  symbol.complement = static_cast<uint16_t>(kRansTotal - frequency);
  if (frequency == 1) {
    // x / 1 would need a 33-bit reciprocal: 2^32 - 1 gives x - 1, and the bias makes up for it.
    symbol.reciprocal = UINT32_MAX;
    symbol.shift = 0;
    symbol.bias = start + kRansTotal - 1;
  } else {
    const auto shift = static_cast<uint32_t>(std::bit_width(frequency - 1) - 1);
    symbol.reciprocal =
        static_cast<uint32_t>(((uint64_t{1} << (32 + shift)) + frequency - 1) / frequency);
    symbol.shift = static_cast<uint16_t>(shift);
    symbol.bias = start;
  }
  return symbol;
}

uint16_t* RansEncode(const uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                     const RansEncoderSymbol* symbols_of, uint16_t* words_end,
                     RansStates& states) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(symbols, grid, contexts, symbols_of, words_end, states);
}

size_t RansDecode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const uint16_t* words, size_t word_count,
                  RansStates& states) noexcept {
  return HWY_DYNAMIC_DISPATCH(Decode)(symbols, grid, contexts, slots, words, word_count, states);
}

namespace ref {

size_t RansDecode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const uint16_t* words, size_t word_count,
                  RansStates& states) noexcept {
  size_t used = 0;
  for (size_t row = 0; row < grid.rows; ++row) {
    uint8_t* out = symbols + row * grid.columns;
    for (size_t column = 0; column < grid.columns; ++column) {
      size_t table;
      if (contexts.tables != nullptr) {
        table = contexts.tables[row * grid.columns + column];
      } else {
        table = contexts.table_of[row > 0 ? (out - grid.columns)[column] : contexts.first_above];
      }
      uint32_t& state = states[column % kRansLanes];
      const RansSlot entry = slots[table * kRansTotal + (state & (kRansTotal - 1))];
      state =
          (state >> kRansTotalBits) * (((entry >> 12) & (kRansTotal - 1)) + 1) + (entry & 0xfff);
      if (state < kRansLow) {
        if (used == word_count) return SIZE_MAX;
        state = state << 16 | words[used++];
      }
      out[column] = static_cast<uint8_t>(entry >> 23);
    }
  }
  return used;
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
