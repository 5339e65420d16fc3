// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Conversion between float and f16 or bf16 (convert.h). Where the CPU has F16C, its instructions
// convert; all other targets compute with integers on vectors. Both equal the scalar functions of
// half.h bit for bit, NaNs included, which the tests check for every half. Large outputs bypass the
// caches.

#include "lib/core/kernels/convert.h"

#include <cstdint>

#include "lib/core/kernels/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/convert.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE

void HalfToFloatT(const std::byte* from, float* to, size_t count) {
  ref::HalfToFloat(from, to, count);
}
void BFloatToFloatT(const std::byte* from, float* to, size_t count) {
  ref::BFloatToFloat(from, to, count);
}
void FloatToHalfT(const float* from, std::byte* to, size_t count) {
  ref::FloatToHalf(from, to, count);
}
void FloatToBFloatT(const float* from, std::byte* to, size_t count) {
  ref::FloatToBFloat(from, to, count);
}

#else

using DF = hn::ScalableTag<float>;
using DU = hn::ScalableTag<uint32_t>;
using DHalf = hn::Rebind<uint16_t, DU>;  // 16-bit lanes, as many as there are floats
using D16 = hn::Repartition<uint16_t, DU>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

const uint16_t* U16(const std::byte* p) { return reinterpret_cast<const uint16_t*>(p); }
uint16_t* U16(std::byte* p) { return reinterpret_cast<uint16_t*>(p); }

// Outputs of at least this size bypass the caches: they would not stay there anyway, and ordinary
// stores would first read every line that they overwrite.
constexpr size_t kStreamBytes = 16 << 20;

// Distance of the prefetch in streaming loops, in values: the arithmetic between two loads is too
// long for the processor to look that far ahead by itself.
constexpr size_t kPrefetch = 2048;

// The two ways to store a vector; loops are instantiated for both.
struct Cached {
  template <class V, class D, typename T>
  static HWY_INLINE void Store(V v, D d, T* to) {
    hn::StoreU(v, d, to);
  }
};
struct Streamed {
  template <class V, class D, typename T>
  static HWY_INLINE void Store(V v, D d, T* to) {
    hn::Stream(v, d, to);
  }
};

// Calls body(at, store) for every `lanes` values. The first and the last call may overlap their
// neighbours, so that the others store aligned vectors and no scalar tail is needed. Returns false
// if there is less than one vector.
template <typename F, typename T, class Body>
HWY_INLINE bool ForVectors(const F* from, T* to, size_t count, size_t lanes, const Body& body) {
  if (count < lanes) return false;
  const size_t bytes = lanes * sizeof(T), past = reinterpret_cast<uintptr_t>(to) % bytes;
  size_t at = 0;
  if (past % sizeof(T) == 0) {
    body(0, Cached());
    at = (bytes - past) / sizeof(T);
    if (count * sizeof(T) >= kStreamBytes) {
      for (; at + lanes + kPrefetch <= count; at += lanes) {
        for (size_t line = 0; line < lanes; line += 64 / sizeof(F))
          hwy::Prefetch(from + at + kPrefetch + line);
        body(at, Streamed());
      }
      hwy::FlushStream();
    }
  }
  for (; at + lanes <= count; at += lanes) body(at, Cached());
  if (at < count) body(count - lanes, Cached());
  return true;
}

// Returns the low halves of the 32-bit lanes of two vectors, in order.
HWY_INLINE hn::Vec<D16> LowHalves(VU high, VU low) {
  const D16 d16;
  return hn::ConcatEven(d16, hn::BitCast(d16, high), hn::BitCast(d16, low));
}

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86 && !defined(HWY_DISABLE_F16C)

HWY_INLINE VF WidenHalf(hn::Vec<DHalf> half) {
  const DU du;
  const hn::Rebind<hwy::float16_t, DU> df16;
  const VF wide = hn::PromoteTo(DF(), hn::BitCast(df16, half));
  // The hardware turns signalling NaNs into quiet ones. Bytes must survive a round trip, so NaNs
  // are widened by hand, which costs nothing while there are none.
  const VU bits = hn::PromoteTo(du, half);
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7fff));
  const auto is_nan = hn::Gt(magnitude, hn::Set(du, 0x7c00));
  if (HWY_LIKELY(hn::AllFalse(du, is_nan))) return wide;
  const VU sign = hn::ShiftLeft<16>(hn::AndNot(hn::Set(du, 0x7fff), bits));
  const VU nan = hn::Or3(sign, hn::ShiftLeft<13>(magnitude), hn::Set(du, 0x7f800000));
  return hn::BitCast(DF(), hn::IfThenElse(is_nan, nan, hn::BitCast(du, wide)));
}

template <class To>
HWY_INLINE void StoreHalves(const float* from, uint16_t* to, To) {
  const DF df;
  const hn::Rebind<hwy::float16_t, DF> df16;
  const DHalf dhalf;
  const size_t lanes = hn::Lanes(df);
  for (const size_t at : {size_t{0}, lanes}) {
    const auto half = hn::DemoteTo(df16, hn::LoadU(df, from + at));
    To::Store(hn::BitCast(dhalf, half), dhalf, to + at);
  }
}

#else

// Without F16C, each lane computes the normal, the subnormal and the special case, and selects one.
HWY_INLINE VF WidenHalf(hn::Vec<DHalf> half) {
  const DU du;
  const DF df;
  const VU bits = hn::PromoteTo(du, half);
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7fff));
  const VU sign = hn::ShiftLeft<16>(hn::Sub(bits, magnitude));
  const VU shifted = hn::ShiftLeft<13>(magnitude);
  // Normal numbers: the exponent moves to a float's place and its bias changes from 15 to 127.
  const VU normal = hn::Add(shifted, hn::Set(du, (127 - 15) << 23));
  const VU special = hn::Or(shifted, hn::Set(du, 0x7f800000));
  // Subnormals: m * 2^-24 is computed as (2^-14 + m * 2^-24) - 2^-14, which has no subnormal
  // operands.
  const VU smallest = hn::Set(du, 113 << 23);
  const VU subnormal = hn::BitCast(
      du, hn::Sub(hn::BitCast(df, hn::Or(shifted, smallest)), hn::BitCast(df, smallest)));
  VU result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7bff)), special, normal);
  result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x0400)), subnormal, result);
  return hn::BitCast(df, hn::Or(sign, result));
}

HWY_INLINE VU NarrowHalf(VF value) {
  const DU du;
  const DF df;
  const VU bits = hn::BitCast(du, value);
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7fffffff));
  const VU sign = hn::ShiftRight<16>(hn::Sub(bits, magnitude));
  const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  // Rounds to nearest even: adding 0xfff and the bit above carries only if the rest is more than a
  // half, or a half and odd.
  const VU rounded = hn::Add(hn::Sub(magnitude, hn::Set(du, 0x38000000 - 0xfff)), odd);
  const VU normal = hn::ShiftRight<13>(rounded);
  // Subnormal results: adding 0.5 makes the floating-point adder round to multiples of 2^-24.
  const VF half = hn::Set(df, 0.5f);
  const VU subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, magnitude), half)), hn::BitCast(du, half));
  const VU nan =
      hn::Or(hn::Set(du, 0x7e00), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ff)));
  VU result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000)), subnormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477fefff)), hn::Set(du, 0x7c00), result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7f800000)), nan, result);
  return hn::Or(sign, result);
}

template <class To>
HWY_INLINE void StoreHalves(const float* from, uint16_t* to, To) {
  const DF df;
  const VU low = NarrowHalf(hn::LoadU(df, from));
  const VU high = NarrowHalf(hn::LoadU(df, from + hn::Lanes(df)));
  To::Store(LowHalves(high, low), D16(), to);
}

#endif  // F16C

HWY_INLINE VU NarrowBFloat(VF value) {
  const DU du;
  const VU bits = hn::BitCast(du, value);
  const VU top = hn::ShiftRight<16>(bits);
  // Rounds to nearest even; a NaN keeps its top bits and becomes quiet.
  const VU rounded =
      hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), hn::And(top, hn::Set(du, 1))));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  return hn::IfThenElse(is_nan, hn::Or(top, hn::Set(du, 0x40)), rounded);
}

void HalfToFloatT(const std::byte* from, float* to, size_t count) {
  const DF df;
  const bool done =
      ForVectors(U16(from), to, count, hn::Lanes(df), [&](size_t at, auto store) HWY_ATTR {
        store.Store(WidenHalf(hn::LoadU(DHalf(), U16(from + 2 * at))), df, to + at);
      });
  if (!done) ref::HalfToFloat(from, to, count);
}

void BFloatToFloatT(const std::byte* from, float* to, size_t count) {
  const DF df;
  const bool done =
      ForVectors(U16(from), to, count, hn::Lanes(df), [&](size_t at, auto store) HWY_ATTR {
        const VU wide = hn::PromoteTo(DU(), hn::LoadU(DHalf(), U16(from + 2 * at)));
        store.Store(hn::BitCast(df, hn::ShiftLeft<16>(wide)), df, to + at);
      });
  if (!done) ref::BFloatToFloat(from, to, count);
}

void FloatToHalfT(const float* from, std::byte* to, size_t count) {
  uint16_t* const halves = U16(to);
  const size_t lanes = 2 * hn::Lanes(DF());
  const bool done = ForVectors(from, halves, count, lanes, [&](size_t at, auto store) HWY_ATTR {
    StoreHalves(from + at, halves + at, store);
  });
  if (!done) ref::FloatToHalf(from, to, count);
}

void FloatToBFloatT(const float* from, std::byte* to, size_t count) {
  const DF df;
  uint16_t* const halves = U16(to);
  const size_t lanes = hn::Lanes(df);
  const bool done = ForVectors(from, halves, count, 2 * lanes, [&](size_t at, auto store) HWY_ATTR {
    const VU low = NarrowBFloat(hn::LoadU(df, from + at));
    const VU high = NarrowBFloat(hn::LoadU(df, from + at + lanes));
    store.Store(LowHalves(high, low), D16(), halves + at);
  });
  if (!done) ref::FloatToBFloat(from, to, count);
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(HalfToFloatT);
HWY_EXPORT(BFloatToFloatT);
HWY_EXPORT(FloatToHalfT);
HWY_EXPORT(FloatToBFloatT);

void HalfToFloat(const std::byte* from, float* to, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(HalfToFloatT)(from, to, count);
}
void BFloatToFloat(const std::byte* from, float* to, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(BFloatToFloatT)(from, to, count);
}
void FloatToHalf(const float* from, std::byte* to, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(FloatToHalfT)(from, to, count);
}
void FloatToBFloat(const float* from, std::byte* to, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(FloatToBFloatT)(from, to, count);
}

}  // namespace kv
#endif  // HWY_ONCE
