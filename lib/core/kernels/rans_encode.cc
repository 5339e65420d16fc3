// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The encoding half of rans.h. rANS encodes in the reverse order of decoding: rows, columns and
// lanes run backwards, and the words are written downwards from the end of the buffer. The division
// by a symbol's frequency is a multiplication by a reciprocal from the symbol's entry. Words are
// compacted by a byte shuffle from a table of all masks.
#include <algorithm>
#include <bit>
#include <utility>

#include "lib/core/kernels/rans.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/rans_encode.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "lib/core/kernels/rans_lookup-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define KV_RANS_VECTOR 1
#else
#define KV_RANS_VECTOR 0
#endif

#if KV_RANS_VECTOR
// Lanes of the encoder are 64 bits wide, because table entries and products are.
using DW = hn::CappedTag<uint64_t, 8>;
using VW = hn::Vec<DW>;
constexpr size_t kWideLanes = hn::MaxLanes(DW());

// Shuffle indices that move the words of the lanes of mask m, which are 2 * stride bytes apart, to
// the end of the vector.
template <int kLanes, int kStride>
struct PackTable {
  alignas(16) uint8_t from[1 << kLanes][16];
  constexpr PackTable() : from() {
    for (int mask = 0; mask < 1 << kLanes; ++mask) {
      int to = 2 * kLanes;
      for (int lane = kLanes - 1; lane >= 0; --lane) {
        if ((mask >> lane & 1) == 0) continue;
        to -= 2;
        from[mask][to] = static_cast<uint8_t>(2 * kStride * lane);
        from[mask][to + 1] = static_cast<uint8_t>(2 * kStride * lane + 1);
      }
    }
  }
};

// Loads the table entries of a vector's lanes. Single loads take half the time of a gather.
HWY_INLINE VW LoadSymbols(const RansEncoderSymbol* symbols, const uint16_t* cells) {
  const auto two = [&](size_t i) HWY_ATTR {
    const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(symbols + cells[i]));
    const auto* second = reinterpret_cast<const double*>(symbols + cells[i + 1]);
    return _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(first), second));
  };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(two(0)), two(2), 1);
#if HWY_TARGET == HWY_AVX2
  return VW{low};
#else
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(two(4)), two(6), 1);
  return VW{_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)};
#endif
}

// Writes the low words of the lanes of a mask, in order, directly before `out`, and arbitrary words
// before those. Returns the number of lanes.
HWY_INLINE size_t Spill(VW states, hn::Mask<hn::RebindToSigned<DW>> full, uint16_t* out) {
#if HWY_TARGET == HWY_AVX2
  static constexpr PackTable<4, 2> kPack;
  const auto bits = static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(full.raw)));
  // Brings the low 32 bits of the four lanes together, then shuffles their low words to the end.
  const __m256i even = _mm256_shuffle_epi32(states.raw, 0x88);
  const __m128i dwords = _mm256_castsi256_si128(_mm256_permute4x64_epi64(even, 0x88));
  const __m128i from = _mm_load_si128(reinterpret_cast<const __m128i*>(kPack.from[bits]));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out - 4), _mm_shuffle_epi8(dwords, from));
#else
  static constexpr PackTable<8, 1> kPack;
  const uint32_t bits = full.raw;
  const __m128i words = _mm512_cvtepi64_epi16(states.raw);
  const __m128i from = _mm_load_si128(reinterpret_cast<const __m128i*>(kPack.from[bits]));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out - 8), _mm_shuffle_epi8(words, from));
#endif
  return static_cast<size_t>(std::popcount(bits));
}
#endif  // KV_RANS_VECTOR

// Encodes one symbol of one lane. The word is always written and only kept if needed, without a
// branch: it would be mispredicted often.
HWY_INLINE void Put(const RansEncoderSymbol& symbol, uint32_t& kept, uint16_t*& out) {
  uint32_t state = kept;
  // full is state >= frequency << kRansLimitShift, rewritten with the complement 2048 - frequency,
  // which the entry stores.
  const bool full = (state >> kRansLimitShift) + symbol.complement() >= kRansTotal;
  out[-1] = static_cast<uint16_t>(state);
  out -= full;
  state = full ? state >> 16 : state;
  // The new state is quotient * 2048 + state mod frequency + start = state + bias + quotient *
  // complement.
  const auto quotient =
      static_cast<uint32_t>((uint64_t{state} * symbol.reciprocal) >> symbol.shift());
  kept = state + symbol.bias() + quotient * symbol.complement();
}

// Offsets of the encoder symbols of each context's table.
template <bool kGivenTables>
struct SymbolBases {
  explicit SymbolBases(const RansContexts& contexts) : first_above(contexts.first_above) {
    if (kGivenTables) return;
    for (int s = 0; s < 256; ++s) of[s] = uint32_t{contexts.table_of[s]} << 8;
  }
  // `context` is the row of contexts; nullptr if no row is above.
  HWY_INLINE uint32_t At(const uint8_t* context, size_t column) const {
    if (kGivenTables) return uint32_t{context[column]} << 8;
    return of[context != nullptr ? context[column] : first_above];
  }

  alignas(64) uint32_t of[256] = {};
  const uint8_t first_above;
};

#if KV_RANS_VECTOR
// Encodes groups of lanes. Between Load and Store, only its members have the current states. No
// member has an address, so that they stay in registers.
template <bool kGivenTables, size_t kLanes>
class LaneEncoder {
 public:
  LaneEncoder(const SymbolBases<kGivenTables>& bases, const RansEncoderSymbol* symbols_of,
              RansStates& states)
      : make_cells_(bases.of),
        first_above_(bases.first_above),
        symbols_of_(symbols_of),
        states_(states) {
    Load();
  }
  HWY_INLINE void Load() {
    ForEach(kAll, [&](size_t p) HWY_ATTR {
      state_[p] = hn::PromoteTo(DW(), hn::LoadU(D32(), states_.data() + p * kWideLanes));
    });
  }
  HWY_INLINE void Store() {
    ForEach(kAll, [&](size_t p) HWY_ATTR {
      hn::StoreU(hn::TruncateTo(D32(), state_[p]), D32(), states_.data() + p * kWideLanes);
    });
  }
  // Encodes the first `column` symbols of a row, which are whole groups, from the last on.
  HWY_INLINE void Encode(const uint8_t* context, const uint8_t* in, size_t column, uint16_t*& out) {
    uint16_t cells[kBlock];
    uint8_t nothing_above[kBlock];
    if (context == nullptr) std::fill_n(nothing_above, kBlock, first_above_);
    while (column > 0) {
      const size_t count = column % kBlock != 0 ? column % kBlock : kBlock;
      column -= count;
      // A cell is the index of an encoder symbol: table and symbol concatenated.
      if (kGivenTables) {
        for (size_t i = 0; i < count; ++i)
          cells[i] = static_cast<uint16_t>(context[column + i] << 8 | in[column + i]);
      } else {
        make_cells_(context != nullptr ? context + column : nothing_above, in + column, count, 0,
                    cells);
      }
      for (size_t block = count; block > 0;) {
        block -= kLanes;
        ForEach(kAll, [&](size_t p) HWY_ATTR {
          const size_t from_last = kParts - 1 - p;
          Step(cells + block + from_last * kWideLanes, state_[from_last], out);
        });
      }
    }
  }

 private:
  using D32 = hn::Rebind<uint32_t, DW>;
  static constexpr size_t kParts = kLanes / kWideLanes;
  static constexpr auto kAll = std::make_index_sequence<kParts>();
  // Cells are computed for a block of symbols at a time, so that the vector code for them is not
  // interleaved with the chain of states.
  static constexpr size_t kBlock = 8 * kMaxRansLanes;

  // The vector form of Put: complement, bias and shift are fields of the 64-bit entry.
  HWY_INLINE void Step(const uint16_t* at, VW& x, uint16_t*& out) const {
    const DW d;
    const hn::RebindToSigned<DW> di;
    const VW symbol = LoadSymbols(symbols_of_, at);
    const VW complement = hn::And(hn::ShiftRight<44>(symbol), hn::Set(d, 0x7ff));
    const VW bias = hn::And(hn::ShiftRight<32>(symbol), hn::Set(d, 0xfff));
    const auto full =
        hn::Gt(hn::BitCast(di, hn::Add(hn::ShiftRight<kRansLimitShift>(x), complement)),
               hn::Set(di, kRansTotal - 1));
    out -= Spill(x, full, out);
    x = hn::IfThenElse(hn::RebindMask(d, full), hn::ShiftRight<16>(x), x);
    const auto low = [&](VW v) HWY_ATTR { return hn::BitCast(hn::RepartitionToNarrow<DW>(), v); };
    const VW quotient = hn::Shr(hn::MulEven(low(x), low(symbol)), hn::ShiftRight<55>(symbol));
    x = hn::Add(hn::Add(x, bias), hn::MulEven(low(quotient), low(complement)));
  }

  const CellMaker make_cells_;
  const uint8_t first_above_;
  const RansEncoderSymbol* const symbols_of_;
  RansStates& states_;
  VW state_[kParts];
};
#else
template <bool kGivenTables, size_t kLanes>
class LaneEncoder {
 public:
  LaneEncoder(const SymbolBases<kGivenTables>& bases, const RansEncoderSymbol* symbols_of,
              RansStates& states)
      : bases_(bases), symbols_of_(symbols_of), states_(states) {}
  HWY_INLINE void Load() {}
  HWY_INLINE void Store() {}
  HWY_INLINE void Encode(const uint8_t* context, const uint8_t* in, size_t column, uint16_t*& out) {
    while (column-- > 0)
      Put(symbols_of_[bases_.At(context, column) + in[column]], states_[column % kLanes], out);
  }

 private:
  const SymbolBases<kGivenTables>& bases_;
  const RansEncoderSymbol* const symbols_of_;
  RansStates& states_;
};
#endif

template <bool kGivenTables, size_t kLanes>
uint16_t* EncodeGrid(const uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                     const RansEncoderSymbol* symbols_of, uint16_t* words_end, RansStates& states) {
  const SymbolBases<kGivenTables> bases(contexts);
  LaneEncoder<kGivenTables, kLanes> lanes(bases, symbols_of, states);
  uint16_t* out = words_end;
  for (size_t row = grid.rows; row-- > 0;) {
    const uint8_t* in = symbols + row * grid.columns;
    const uint8_t* context = kGivenTables ? contexts.tables + row * grid.columns
                             : row > 0    ? in - grid.columns
                                          : contexts.first_row;
    size_t column = grid.columns;
    // Columns beyond whole groups come first, because encoding runs backwards.
    if (column % kLanes != 0) {
      lanes.Store();
      for (; column % kLanes != 0; --column) {
        const size_t at = column - 1;
        Put(symbols_of[bases.At(context, at) + in[at]], states[at % kLanes], out);
      }
      lanes.Load();
    }
    lanes.Encode(context, in, column, out);
  }
  lanes.Store();
  return out;
}

template <bool kGivenTables>
uint16_t* EncodeLanes(const uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                      const RansEncoderSymbol* symbols_of, uint16_t* words_end,
                      RansStates& states) {
  const auto encode = grid.lanes == 64   ? EncodeGrid<kGivenTables, 64>
                      : grid.lanes == 32 ? EncodeGrid<kGivenTables, 32>
                                         : EncodeGrid<kGivenTables, 16>;
  return encode(symbols, grid, contexts, symbols_of, words_end, states);
}

uint16_t* Encode(const uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                 const RansEncoderSymbol* symbols_of, uint16_t* words_end, RansStates& states) {
  const auto encode = contexts.tables != nullptr ? EncodeLanes<true> : EncodeLanes<false>;
  return encode(symbols, grid, contexts, symbols_of, words_end, states);
}

#undef KV_RANS_VECTOR
}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Encode);

RansEncoderSymbol MakeRansEncoderSymbol(uint32_t start, uint32_t frequency) noexcept {
  const auto make = [&](uint64_t reciprocal, uint32_t bias, uint32_t shift) {
    return RansEncoderSymbol{static_cast<uint32_t>(reciprocal),
                             shift << 23 | (kRansTotal - frequency) << 12 | bias};
  };
  // x / 1 would need a reciprocal of 33 bits. 2^32 - 1 yields x - 1 instead, and the bias corrects
  // it.
  if (frequency == 1) return make(UINT32_MAX, start + kRansTotal - 1, 32);
  // The reciprocal ceil(2^shift / f) is exact for all states below 2^31 (Granlund and Montgomery).
  const auto shift = 32 + static_cast<uint32_t>(std::bit_width(frequency - 1) - 1);
  return make(((uint64_t{1} << shift) + frequency - 1) / frequency, start, shift);
}

uint16_t* RansEncode(const uint8_t* symbols, RansGrid grid, const RansContexts& contexts,
                     const RansEncoderSymbol* symbols_of, uint16_t* words_end,
                     RansStates& states) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(symbols, grid, contexts, symbols_of, words_end, states);
}

}  // namespace kv
#endif  // HWY_ONCE
