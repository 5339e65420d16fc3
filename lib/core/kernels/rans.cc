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

// Holds the offset of the table of each context.
template <bool kGivenTables>
struct SlotBases {
  explicit SlotBases(const RansContexts& contexts) {
    if (kGivenTables) return;
    for (int s = 0; s < 256; ++s) of[s] = uint32_t{contexts.table_of[s]} << kRansTotalBits;
    first = of[contexts.first_above];
  }
  // `context` is that of the column; nullptr if no row is above.
  HWY_INLINE uint32_t At(const uint8_t* context) const {
    if (context == nullptr) return first;
    return kGivenTables ? uint32_t{*context} << kRansTotalBits : of[*context];
  }

  alignas(64) uint32_t of[256];  // not used if the caller gives tables
  uint32_t first = 0;
};

// Decodes one symbol except for the word that its lane may need. `slots` are those of its table.
HWY_INLINE uint8_t DecodeSymbol(const RansSlot* slots, uint32_t& x) {
  const RansSlot entry = slots[x & (kRansTotal - 1)];
  x = (x >> kRansTotalBits) * (((entry >> 12) & (kRansTotal - 1)) + 1) + (entry & 0xfff);
  return static_cast<uint8_t>(entry >> 23);
}

// Decodes groups of lanes. Between Load and Store, only the group's members have the current
// states.
#if KV_RANS_VECTOR
// A group is kParts vectors, each with its own chain of dependent operations.
template <bool kGivenTables, size_t kLanes>
class LaneDecoder {
 public:
  LaneDecoder(const SlotBases<kGivenTables>& bases, const RansSlot* slots, RansStates& states)
      : first_base_(bases.first),
        base_after_(bases.of),
        table_(reinterpret_cast<const uint32_t*>(slots)),
        states_(states) {
    Load();
  }
  HWY_INLINE void Load() {
    ForEach(kAll,
            [&](size_t p) HWY_ATTR { state_[p] = hn::LoadU(D(), states_.data() + p * kWide); });
  }
  HWY_INLINE void Store() {
    ForEach(kAll,
            [&](size_t p) HWY_ATTR { hn::StoreU(state_[p], D(), states_.data() + p * kWide); });
  }
  // Decodes a symbol of each lane and returns the number of words taken. If `follows`, the contexts
  // are the symbols of the call before, which are still in registers.
  HWY_INLINE size_t Decode(const uint8_t* context, bool follows, uint8_t* out,
                           const std::byte* words) {
    M needs[kParts];
    ForEach(kAll, [&](size_t p) HWY_ATTR {
      V base = hn::Set(D(), first_base_);
      if (context != nullptr)
        base = base_after_(follows ? above_[p]
                                   : hn::PromoteTo(D(), hn::LoadU(D8(), context + p * kWide)));
      needs[p] = Step(state_[p], base, above_[p], out + p * kWide);
    });
    size_t used = 0;
    ForEach(kAll,
            [&](size_t p) HWY_ATTR { used += Refill(state_[p], needs[p], words + 2 * used); });
    return used;
  }

 private:
  static constexpr size_t kParts = kLanes / kWide;
  static constexpr auto kAll = std::make_index_sequence<kParts>();

  // Decodes one symbol per lane and returns the lanes that need a word.
  HWY_INLINE M Step(V& x, V base, V& symbol, uint8_t* out) const {
    const D d;
    const DI di;
    const V total_mask = hn::Set(d, kRansTotal - 1);
    // The slot's entry has everything: the symbol, its frequency and the offset within its slots.
    const V slot = hn::Add(base, hn::And(x, total_mask));
    const V entry = hn::GatherIndex(d, table_, hn::BitCast(di, slot));
    // The fields of an entry are those of MakeRansSlot; the frequency is stored less one.
    const V frequency = hn::Add(hn::And(hn::ShiftRight<12>(entry), total_mask), hn::Set(d, 1));
    const V offset = hn::And(entry, hn::Set(d, 0xfff));
    x = hn::Add(hn::Mul(hn::ShiftRight<kRansTotalBits>(x), frequency), offset);
    symbol = hn::ShiftRight<23>(entry);
    StoreSymbols(symbol, out);
    return hn::Lt(hn::BitCast(di, x), hn::Set(di, static_cast<int32_t>(kRansLow)));
  }

  const uint32_t first_base_;
  const std::conditional_t<kGivenTables, TableShift<kRansTotalBits>, SymbolLookup> base_after_;
  const uint32_t* const table_;
  RansStates& states_;
  V state_[kParts], above_[kParts];
};
#else
template <bool kGivenTables, size_t kLanes>
class LaneDecoder {
 public:
  LaneDecoder(const SlotBases<kGivenTables>& bases, const RansSlot* slots, RansStates& states)
      : bases_(bases), slots_(slots), states_(states) {}
  HWY_INLINE void Load() {}
  HWY_INLINE void Store() {}
  HWY_INLINE size_t Decode(const uint8_t* context, bool, uint8_t* out, const std::byte* words) {
    size_t used = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      uint32_t x = states_[lane];
      out[lane] =
          DecodeSymbol(slots_ + bases_.At(context == nullptr ? nullptr : context + lane), x);
      // The word is always read and only kept if needed, without a branch: it would be mispredicted
      // often. The mask 0 - needs selects the filled state without a conditional.
      const uint32_t needs = x < kRansLow;
      const uint32_t filled = x << 16 | LoadLE<uint16_t>(words + 2 * used);
      states_[lane] = x ^ ((x ^ filled) & (0 - needs));
      used += needs;
    }
    return used;
  }

 private:
  const SlotBases<kGivenTables>& bases_;
  const RansSlot* const slots_;
  RansStates& states_;
};
#endif

// Decodes one group of lanes after another. Each lane is a chain of dependent operations (gather,
// multiply, gather), so its latency bounds the speed; more vectors per group hide it.
template <bool kGivenTables, size_t kLanes>
size_t DecodeGrid(uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                  const RansSlot* slots, const std::byte* words, size_t word_count,
                  RansStates& states) {
  const SlotBases<kGivenTables> bases(contexts);
  LaneDecoder<kGivenTables, kLanes> lanes(bases, slots, states);
  size_t used = 0;
  for (size_t row = 0; row < grid.rows; ++row) {
    uint8_t* out = symbols + row * grid.columns;
    const uint8_t* context = kGivenTables ? contexts.tables + row * grid.columns
                             : row > 0    ? out - grid.columns
                                          : contexts.first_row;
    const auto context_at = [&](size_t column) HWY_ATTR {
      return context == nullptr ? nullptr : context + column;
    };
    // If a row is a single group, the next row needs its symbols at once.
    const bool follows = !kGivenTables && grid.columns == kLanes && row > 0;
    size_t column = 0;
    // A group may need a word per lane; near the end of the stream each lane is checked.
    for (; column + kLanes <= grid.columns && used + kLanes <= word_count; column += kLanes)
      used += lanes.Decode(context_at(column), follows, out + column, words + 2 * used);
    if (column == grid.columns) continue;
    // Decodes the last partial group, or the group that may exhaust the stream.
    lanes.Store();
    for (; column < grid.columns; ++column) {
      uint32_t& x = states[column % kLanes];
      out[column] = DecodeSymbol(slots + bases.At(context_at(column)), x);
      if (x >= kRansLow) continue;
      if (used == word_count) return SIZE_MAX;
      x = x << 16 | LoadLE<uint16_t>(words + 2 * used++);
    }
    lanes.Load();
  }
  lanes.Store();
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
