// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Looks up sixteen context tables at once (AVX2: eight), for both halves of rans.h and for
// counts.cc. Included once for each target.
#if defined(KV_RANS_LOOKUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KV_RANS_LOOKUP_INL_H_
#undef KV_RANS_LOOKUP_INL_H_
#else
#define KV_RANS_LOOKUP_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {

// Calls f(0), f(1) ... unrolled, so that arrays of vectors stay in registers.
template <class F, size_t... I>
HWY_INLINE void ForEach(std::index_sequence<I...>, F f) {
  (f(I), ...);
}

#if HWY_TARGET == HWY_AVX2
// Maps each of 256 symbols to a 32-bit entry by a gather.
class SymbolLookup {
 public:
  using D = hwy::HWY_NAMESPACE::CappedTag<uint32_t, 8>;
  using V = hwy::HWY_NAMESPACE::Vec<D>;

  explicit SymbolLookup(const uint32_t* of_symbol) : of_symbol_(of_symbol) {}
  HWY_INLINE V operator()(V symbol) const {
    const hwy::HWY_NAMESPACE::RebindToSigned<D> di;
    return hwy::HWY_NAMESPACE::GatherIndex(D(), of_symbol_,
                                           hwy::HWY_NAMESPACE::BitCast(di, symbol));
  }

 private:
  const uint32_t* of_symbol_;
};
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Maps each of 256 symbols to a 16-bit entry held in registers, because gathers take several times
// as long. Pairs of registers hold 64 entries each; if entries from 64 on are all 0, one pair
// suffices.
class SymbolLookup {
 public:
  using D = hwy::HWY_NAMESPACE::CappedTag<uint32_t, 16>;
  using V = hwy::HWY_NAMESPACE::Vec<D>;

  explicit SymbolLookup(const uint32_t* of_symbol) {
    alignas(64) uint16_t words[256];
    for (int s = 0; s < 256; ++s) words[s] = static_cast<uint16_t>(of_symbol[s]);
    for (int r = 0; r < 8; ++r) registers_[r] = _mm512_load_si512(words + 32 * r);
    for (int s = 64; s < 256; ++s) all_ = all_ || words[s] != 0;
  }
  HWY_INLINE V operator()(V symbol) const {
    // A symbol is the lower word of its lane; the result of the upper words is masked out.
    return V{Find<0x55555555>(symbol.raw)};
  }
  // Looks up 32 symbols of 16 bits each.
  HWY_INLINE __m512i Words(__m512i symbols) const { return Find<0xffffffff>(symbols); }

 private:
  template <__mmask32 kWanted>
  HWY_INLINE __m512i Find(__m512i at) const {
    // Bits 6 and 7 of a symbol select among the results of the four pairs.
    const __m512i low = _mm512_set1_epi16(64), high = _mm512_set1_epi16(128);
    if (!all_) {
      const __mmask32 known = _mm512_mask_cmplt_epu16_mask(kWanted, at, low);
      return _mm512_maskz_permutex2var_epi16(known, registers_[0], at, registers_[1]);
    }
    const auto pair = [&](int first) HWY_ATTR {
      return _mm512_maskz_permutex2var_epi16(kWanted, registers_[first], at, registers_[first + 1]);
    };
    const __mmask32 odd = _mm512_test_epi16_mask(at, low), upper = _mm512_test_epi16_mask(at, high);
    return _mm512_mask_blend_epi16(upper, _mm512_mask_blend_epi16(odd, pair(0), pair(2)),
                                   _mm512_mask_blend_epi16(odd, pair(4), pair(6)));
  }

  __m512i registers_[8];
  bool all_ = false;
};
#endif

// Computes the index of each symbol in an array of tables: base_of[symbol above] + (symbol >> cut),
// in 16 bits.
class CellMaker {
 public:
  // The 256 bases must outlive the object.
  explicit CellMaker(const uint32_t* base_of)
      : base_of_(base_of)
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
        ,
        base_after_(base_of)
#endif
  {
  }
  HWY_INLINE void operator()(const uint8_t* above, const uint8_t* symbols, size_t count, int cut,
                             uint16_t* cells) const {
    size_t i = 0;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    const auto words = [](const uint8_t* from) HWY_ATTR {
      return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    };
    for (; i + 32 <= count; i += 32) {
      const __m512i symbol = _mm512_srl_epi16(words(symbols + i), _mm_cvtsi32_si128(cut));
      const __m512i cell = _mm512_add_epi16(base_after_.Words(words(above + i)), symbol);
      _mm512_storeu_si512(cells + i, cell);
    }
#endif
    for (; i < count; ++i)
      cells[i] = static_cast<uint16_t>(base_of_[above[i]] + (uint32_t{symbols[i]} >> cut));
  }

 private:
  const uint32_t* base_of_;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  SymbolLookup base_after_;
#endif
};

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Replaces SymbolLookup if the tables are given: the base is then just a shift.
template <int kBits>
class TableShift {
 public:
  explicit TableShift(const uint32_t*) {}
  HWY_INLINE SymbolLookup::V operator()(SymbolLookup::V table) const {
    return hwy::HWY_NAMESPACE::ShiftLeft<kBits>(table);
  }
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
