// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Helpers that the score kernels share within one SIMD target. Their sources include score.h before
// it.
#if defined(KV_KERNELS_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KV_KERNELS_SCORE_INL_H_
#undef KV_KERNELS_SCORE_INL_H_
#else
#define KV_KERNELS_SCORE_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = 16;  // virtual lanes: of one vector, or of several shorter ones
using D = hn::CappedTag<float, kLanes>;
using V = hn::Vec<D>;
constexpr size_t kStep = hn::MaxLanes(D());
constexpr size_t kRegs = kLanes / kStep;
using D4 = hn::CappedTag<float, 4>;
using V4 = hn::Vec<D4>;

template <KeyType type>
constexpr size_t kKeyBytes = type == KeyType::kF32 ? 4 : 2;

// Returns kStep values of a key, widened in registers.
template <KeyType type>
HWY_INLINE V Widen(const std::byte* p) {
  const D d;
  if constexpr (type == KeyType::kF32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(p));
#if HWY_TARGET <= HWY_AVX2
  } else if constexpr (type == KeyType::kF16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
#endif
  } else {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
    if constexpr (type == KeyType::kBF16) return hn::BitCast(d, hn::ShiftLeft<16>(bits));
    // Without F16C, the exponent is shifted into place and rebiased by a multiplication, which is
    // exact for subnormals too; infinities and NaNs get their exponent back.
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(d32, 0x7fffu)));
    const auto scaled = hn::BitCast(d32, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
    const hn::Rebind<int32_t, D> di;
    const auto special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x0f7fffff));
    const auto exponent =
        hn::IfThenElseZero(hn::RebindMask(d32, special), hn::Set(d32, 0x7f800000u));
    return hn::BitCast(d, hn::Or(sign, hn::Or(scaled, exponent)));
  }
}

#if !HWY_NATIVE_FMA
// Returns a * b + c of half a vector, rounded once: the product is exact in double, and a sum
// rounded to odd there rounds to float as if it were exact.
template <class DF, class VF>
HWY_INLINE VF FusedHalf(DF df, VF a, VF b, VF c) {
  const hn::Rebind<double, DF> dd;
  const hn::RebindToUnsigned<decltype(dd)> du;
  const auto product = hn::Mul(hn::PromoteTo(dd, a), hn::PromoteTo(dd, b));
  const auto addend = hn::PromoteTo(dd, c);
  const auto sum = hn::Add(product, addend);
  const auto part = hn::Sub(sum, product);
  const auto lost =
      // NaN if any term is infinite
      hn::Add(hn::Sub(product, hn::Sub(sum, part)), hn::Sub(addend, part));
  const auto zero = hn::Zero(dd);
  const auto bits = hn::BitCast(du, sum);
  const auto one = hn::Set(du, 1);
  const auto away = hn::Or(hn::And(hn::Gt(lost, zero), hn::Gt(sum, zero)),
                           hn::And(hn::Lt(lost, zero), hn::Lt(sum, zero)));
  const auto inward = hn::Or(hn::And(hn::Gt(lost, zero), hn::Lt(sum, zero)),
                             hn::And(hn::Lt(lost, zero), hn::Gt(sum, zero)));
  const auto even = hn::Eq(hn::And(bits, one), hn::Zero(du));
  const auto up = hn::And(even, hn::RebindMask(du, away));
  const auto down = hn::And(even, hn::RebindMask(du, inward));
  auto odd = hn::Add(bits, hn::IfThenElseZero(up, one));
  odd = hn::Sub(odd, hn::IfThenElseZero(down, one));
  return hn::DemoteTo(df, hn::BitCast(dd, odd));
}
#endif

// Computes std::fma of each lane, also on machines without the instruction.
HWY_INLINE V Fused(V a, V b, V c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  const D d;
  const hn::Half<D> half;
  const auto low =
      FusedHalf(half, hn::LowerHalf(half, a), hn::LowerHalf(half, b), hn::LowerHalf(half, c));
  const auto high =
      FusedHalf(half, hn::UpperHalf(half, a), hn::UpperHalf(half, b), hn::UpperHalf(half, c));
  return hn::Combine(d, high, low);
#endif
}

// Folds 16 virtual lanes to 4: i + 8, then i + 4.
HWY_INLINE V4 FoldTo4(const V* lanes) {
  if constexpr (kStep == 16) {
#if HWY_MAX_BYTES >= 64
    const hn::Half<D> d8;
    const auto a = hn::Add(hn::LowerHalf(d8, lanes[0]), hn::UpperHalf(d8, lanes[0]));
    return hn::Add(hn::LowerHalf(D4(), a), hn::UpperHalf(D4(), a));
#endif
  } else if constexpr (kStep == 8) {
#if HWY_MAX_BYTES == 32
    const auto a = hn::Add(lanes[0], lanes[1]);
    return hn::Add(hn::LowerHalf(D4(), a), hn::UpperHalf(D4(), a));
#endif
  } else {
#if HWY_MAX_BYTES == 16
    return hn::Add(hn::Add(lanes[0], lanes[2]), hn::Add(lanes[1], lanes[3]));
#endif
  }
}

// Folds four such vectors to their four sums: i + 2, then i + 1.
HWY_INLINE V4 FoldFour(V4 a, V4 b, V4 c, V4 d) {
  const D4 d4;
  const V4 ab = hn::Add(hn::InterleaveLower(d4, a, b), hn::InterleaveUpper(d4, a, b));
  const V4 cd = hn::Add(hn::InterleaveLower(d4, c, d), hn::InterleaveUpper(d4, c, d));
  return hn::Add(hn::ConcatLowerLower(d4, cd, ab), hn::ConcatUpperUpper(d4, cd, ab));
}

// Follows kv::ref::Exp step by step, for equal bits.
HWY_INLINE V Exp(V x) {
  const D d;
  const hn::Rebind<uint32_t, D> du;
  const auto underflows = hn::Lt(x, hn::Set(d, -87.0f));
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = Fused(x, hn::Set(d, 1.44269504088896341f), magic);
  const V n = hn::Sub(shifted, magic);
  V r = Fused(n, hn::Set(d, -0.693359375f), x);
  r = Fused(n, hn::Set(d, 2.12194440e-4f), r);
  V p = hn::Set(d, 1.381454020e-3f);
  p = Fused(p, r, hn::Set(d, 8.368745207e-3f));
  p = Fused(p, r, hn::Set(d, 4.166839079e-2f));
  p = Fused(p, r, hn::Set(d, 1.666652040e-1f));
  p = Fused(p, r, hn::Set(d, 4.999999343e-1f));
  p = Fused(p, r, hn::Set(d, 1.0f));
  p = Fused(p, r, hn::Set(d, 1.0f));
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, shifted)), hn::Set(du, 0x3f800000u));
  return hn::IfThenZeroElse(underflows, hn::Mul(p, hn::BitCast(d, power)));
}

#endif  // HWY_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#endif  // per target
