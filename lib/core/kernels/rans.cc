// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The decoding half of rans.h. All lanes of a group decode one symbol at a time: mask the slot out
// of the state, gather the slot's entry, multiply, add, and append a word to the lanes whose state
// fell below 2^15. The words of a group lie in the order of its lanes, so that appending is an
// expansion of consecutive words by a mask. Targets without gathers decode lane by lane, with the
// same result.

#include "lib/core/kernels/rans.h"

#include <bit>
#include <type_traits>
#include <utility>

#include "lib/core/base/bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/rans.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "lib/core/kernels/rans_lookup-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The vector code needs gathers; other targets take the scalar path.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define KV_RANS_VECTOR 1
#else
#define KV_RANS_VECTOR 0
#endif

#if KV_RANS_VECTOR
using D = hn::CappedTag<uint32_t, 16>;
using DI = hn::RebindToSigned<D>;
using D8 = hn::Rebind<uint8_t, D>;
using D16 = hn::Rebind<uint16_t, D>;
using V = hn::Vec<D>;
using M = hn::Mask<DI>;
constexpr size_t kWide = hn::MaxLanes(D());

// Calls f(0), f(1) ... unrolled, so that arrays of vectors stay in registers.
template <class F, size_t... I>
HWY_INLINE void ForEach(std::index_sequence<I...>, F f) {
  (f(I), ...);
}

// Refill renormalises: it appends the next words, in order, to the lanes of a mask. Only this step
// differs between targets. Returns the number of words taken.
#if HWY_TARGET == HWY_AVX2
// Entry m holds for each lane the number of lower lanes that are set in m: the word it takes.
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

HWY_INLINE size_t Refill(V& state, M needs, const std::byte* words) {
  const D d;
  const auto bits = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(needs.raw)));
  const V next = hn::PromoteTo(d, hn::LoadU(D16(), reinterpret_cast<const uint16_t*>(words)));
  const V spread = hn::TableLookupLanes(next, hn::SetTableIndices(d, kSpread.ranks[bits]));
  const V filled = hn::Or(hn::ShiftLeft<16>(state), spread);
  state = hn::IfThenElse(hn::RebindMask(d, needs), filled, state);
  return static_cast<size_t>(std::popcount(bits));
}
HWY_INLINE void StoreSymbols(V symbols, uint8_t* out) {
  hn::StoreU(hn::DemoteTo(D8(), hn::BitCast(DI(), symbols)), D8(), out);
}
#else
HWY_INLINE size_t Refill(V& state, M needs, const std::byte* words) {
  const V next = hn::PromoteTo(D(), hn::LoadU(D16(), reinterpret_cast<const uint16_t*>(words)));
  const __m512i spread = _mm512_maskz_expand_epi32(needs.raw, next.raw);
  state.raw = _mm512_mask_or_epi32(state.raw, needs.raw, hn::ShiftLeft<16>(state).raw, spread);
  return static_cast<size_t>(std::popcount(uint32_t{needs.raw}));
}
HWY_INLINE void StoreSymbols(V symbols, uint8_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(symbols.raw));
}
#endif
#endif  // KV_RANS_VECTOR

// Decodes one group of lanes after another. Each lane is a chain of dependent operations (gather,
// multiply, gather), so its latency bounds the speed; more vectors per group hide it.
template <bool kGivenTables, size_t kLanes>
size_t DecodeGrid(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const std::byte* words, size_t word_count,
                  RansStates& states) {
  alignas(64) uint32_t base_of[256];  // table_of, scaled to slots
  if (!kGivenTables) {
    for (int s = 0; s < 256; ++s) base_of[s] = uint32_t{contexts.table_of[s]} << kRansTotalBits;
  }
  const uint32_t first_base = kGivenTables ? 0 : base_of[contexts.first_above];
  size_t used = 0;
#if KV_RANS_VECTOR
  // A group of lanes is kParts vectors, each with its own chain of dependent operations.
  constexpr size_t kParts = kLanes / kWide;
  constexpr auto parts = std::make_index_sequence<kParts>();
  const D d;
  const DI di;
  V state[kParts];
  // If a row is a single group, the next row needs its symbols at once: they stay in registers.
  V above[kParts];
  const bool narrow = !kGivenTables && grid.columns == kLanes;
  const auto load = [&]() HWY_ATTR {
    ForEach(parts, [&](size_t p) HWY_ATTR { state[p] = hn::LoadU(d, states.data() + p * kWide); });
  };
  const auto store = [&]() HWY_ATTR {
    ForEach(parts, [&](size_t p) HWY_ATTR { hn::StoreU(state[p], d, states.data() + p * kWide); });
  };
  const V total_mask = hn::Set(d, kRansTotal - 1);
  const auto* table = reinterpret_cast<const uint32_t*>(slots);
  const std::conditional_t<kGivenTables, TableShift<kRansTotalBits>, SymbolLookup> base_after(
      base_of);
  const auto bases = [&](const uint8_t* from)
                         HWY_ATTR { return base_after(hn::PromoteTo(d, hn::LoadU(D8(), from))); };
  // Decodes one symbol per lane and returns the lanes that need a word.
  const auto step = [&](V& x, V base, V& symbol, uint8_t* out) HWY_ATTR {
    // The slot's entry has everything: the symbol, its frequency and the offset within its slots.
    const V slot = hn::Add(base, hn::And(x, total_mask));
    const V entry = hn::GatherIndex(d, table, hn::BitCast(di, slot));
    // The fields of an entry are those of MakeRansSlot; the frequency is stored less one.
    const V frequency = hn::Add(hn::And(hn::ShiftRight<12>(entry), total_mask), hn::Set(d, 1));
    const V offset = hn::And(entry, hn::Set(d, 0xfff));
    x = hn::Add(hn::Mul(hn::ShiftRight<kRansTotalBits>(x), frequency), offset);
    symbol = hn::ShiftRight<23>(entry);
    StoreSymbols(symbol, out);
    return hn::Lt(hn::BitCast(di, x), hn::Set(di, static_cast<int32_t>(kRansLow)));
  };
  load();
#endif
  for (size_t row = 0; row < grid.rows; ++row) {
    uint8_t* out = symbols + row * grid.columns;
    const uint8_t* context = kGivenTables ? contexts.tables + row * grid.columns
                             : row > 0    ? out - grid.columns
                                          : contexts.first_row;
    const bool in_context = context != nullptr;
    const auto base_at = [&](size_t column) HWY_ATTR {
      if (!in_context) return first_base;
      return kGivenTables ? uint32_t{context[column]} << kRansTotalBits : base_of[context[column]];
    };
    // Decodes one symbol except for the word that its lane may need.
    const auto one = [&](size_t column, uint32_t& x) HWY_ATTR {
      const RansSlot entry = slots[base_at(column) + (x & (kRansTotal - 1))];
      x = (x >> kRansTotalBits) * (((entry >> 12) & (kRansTotal - 1)) + 1) + (entry & 0xfff);
      out[column] = static_cast<uint8_t>(entry >> 23);
    };
    size_t column = 0;
    // The whole group may need a word per lane; near the end of the stream the scalar path checks
    // each.
    for (; column + kLanes <= grid.columns && used + kLanes <= word_count; column += kLanes) {
#if KV_RANS_VECTOR
      M needs[kParts];
      ForEach(parts, [&](size_t p) HWY_ATTR {
        const size_t at = column + p * kWide;
        V base = hn::Set(d, first_base);
        if (in_context) base = narrow && row > 0 ? base_after(above[p]) : bases(context + at);
        needs[p] = step(state[p], base, above[p], out + at);
      });
      ForEach(parts,
              [&](size_t p) HWY_ATTR { used += Refill(state[p], needs[p], words + 2 * used); });
#else
      for (size_t lane = 0; lane < kLanes; ++lane) {
        uint32_t x = states[lane];
        one(column + lane, x);
        // The word is always read and only kept if needed, without a branch: it would be
        // mispredicted often.
        // The mask 0 - needs selects the filled state without a conditional.
        const uint32_t needs = x < kRansLow;
        const uint32_t filled = x << 16 | LoadLE<uint16_t>(words + 2 * used);
        states[lane] = x ^ ((x ^ filled) & (0 - needs));
        used += needs;
      }
#endif
    }
    if (column == grid.columns) continue;
      // A last partial group, or the last words of the stream.
#if KV_RANS_VECTOR
    store();
#endif
    for (; column < grid.columns; ++column) {
      uint32_t& x = states[column % kLanes];
      one(column, x);
      if (x >= kRansLow) continue;
      if (used == word_count) return SIZE_MAX;
      x = x << 16 | LoadLE<uint16_t>(words + 2 * used++);
    }
#if KV_RANS_VECTOR
    load();
#endif
  }
#if KV_RANS_VECTOR
  store();
#endif
  return used;
}

// The number of lanes and the kind of contexts are constants of the loop, so that loops over lanes
// unroll.
template <bool kGivenTables>
size_t DecodeLanes(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                   const RansSlot* slots, const std::byte* words, size_t word_count,
                   RansStates& states) {
  const auto decode = grid.lanes == 64   ? DecodeGrid<kGivenTables, 64>
                      : grid.lanes == 32 ? DecodeGrid<kGivenTables, 32>
                                         : DecodeGrid<kGivenTables, 16>;
  return decode(symbols, grid, contexts, slots, words, word_count, states);
}

size_t Decode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts, const RansSlot* slots,
              const std::byte* words, size_t word_count, RansStates& states) {
  const auto decode = contexts.tables != nullptr ? DecodeLanes<true> : DecodeLanes<false>;
  return decode(symbols, grid, contexts, slots, words, word_count, states);
}

#undef KV_RANS_VECTOR
}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Decode);

// A group must not straddle rows, because the row above is its context: lanes divide the columns.
uint32_t RansLanesFor(RansGrid grid, size_t many, size_t more) noexcept {
  const auto serve = [&](uint32_t lanes, size_t least) {
    return grid.rows * grid.columns >= least && (grid.rows == 1 || grid.columns % lanes == 0);
  };
  return serve(64, more) ? 64 : serve(32, many) ? 32 : kRansLanes;
}

size_t RansDecode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const std::byte* words, size_t word_count,
                  RansStates& states) noexcept {
  return HWY_DYNAMIC_DISPATCH(Decode)(symbols, grid, contexts, slots, words, word_count, states);
}

namespace ref {

size_t RansDecode(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const std::byte* words, size_t word_count,
                  RansStates& states) noexcept {
  size_t used = 0;
  for (size_t row = 0; row < grid.rows; ++row) {
    uint8_t* out = symbols + row * grid.columns;
    for (size_t column = 0; column < grid.columns; ++column) {
      size_t table;
      if (contexts.tables != nullptr) {
        table = contexts.tables[row * grid.columns + column];
      } else {
        const uint8_t* above = row > 0 ? out - grid.columns : contexts.first_row;
        table = contexts.table_of[above != nullptr ? above[column] : contexts.first_above];
      }
      uint32_t& state = states[column % grid.lanes];
      const RansSlot entry = slots[table * kRansTotal + (state & (kRansTotal - 1))];
      state =
          (state >> kRansTotalBits) * (((entry >> 12) & (kRansTotal - 1)) + 1) + (entry & 0xfff);
      if (state < kRansLow) {
        if (used == word_count) return SIZE_MAX;
        state = state << 16 | LoadLE<uint16_t>(words + 2 * used++);
      }
      out[column] = static_cast<uint8_t>(entry >> 23);
    }
  }
  return used;
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
