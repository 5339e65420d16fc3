// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Slots of values under logistic distributions, several at once. The result is integers, so that
// vectors and the scalar reference must agree exactly; both compute in doubles in which every step
// but one is exact.

#include "lib/core/kernels/logistic.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/logistic.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
using DD = hn::ScalableTag<double>;
using DI = hn::Rebind<int32_t, DD>;
using DF = hn::Rebind<float, DD>;
using VD = hn::Vec<DD>;
using VI = hn::Vec<DI>;

// Computes LogisticBelow for ordinals from 1 to 65535. All doubles here are exact except `step`,
// which the reference rounds in the same way.
HWY_INLINE VI Below(const LogisticShares& shares, VI place, VD mean, VD steps_per_value) {
  constexpr double kMiddle = LogisticShares::kSpan * LogisticShares::kSteps;
  const DD d;
  const DI di;
  const DF df;
  const auto from_zero = hn::Sub(place, hn::Set(di, 0x8000));
  // The border to the preceding value is half a step of the value towards zero, in the bits of a
  // float.
  const auto bits = hn::Sub(hn::ShiftLeftSame(hn::Abs(from_zero), shares.shift),
                            hn::Set(di, static_cast<int32_t>(shares.half_step)));
  const auto limited = hn::Min(bits, hn::Set(di, static_cast<int32_t>(shares.largest)));
  const auto size = hn::Mul(hn::BitCast(df, limited), hn::Set(df, shares.scale));
  const auto border = hn::IfThenZeroElse(hn::RebindMask(df, hn::Eq(from_zero, hn::Zero(di))),
                                         hn::CopySign(size, hn::BitCast(df, from_zero)));
  const auto step = hn::Add(hn::Mul(hn::Sub(hn::PromoteTo(d, border), mean), steps_per_value),
                            hn::Set(d, kMiddle));
  // Beyond the table the distribution counts as 0 or 1; the least shares keep such values possible.
  const auto inside = hn::Min(hn::Max(step, hn::Zero(d)), hn::Set(d, 2 * kMiddle));
  const auto fixed = hn::DemoteTo(di, hn::Mul(inside, hn::Set(d, 1 << 20)));
  const auto index = hn::ShiftRight<20>(fixed), part = hn::And(fixed, hn::Set(di, (1 << 20) - 1));
  // Neighbouring entries of the table are gathered and interpolated with 20 fractional bits.
  const auto* table = reinterpret_cast<const int32_t*>(shares.below);
  const auto low = hn::GatherIndex(di, table, index), high = hn::GatherIndex(di, table + 1, index);
  const auto more = hn::Mul(hn::Mul(hn::PromoteTo(d, hn::Sub(high, low)), hn::PromoteTo(d, part)),
                            hn::Set(d, 1.0 / (1 << 20)));
  return hn::Add(hn::Add(low, hn::DemoteTo(di, more)),
                 hn::ShiftLeft<LogisticShares::kFloorBits>(place));
}

void Slots(const LogisticShares& shares, const uint16_t* halves, const float* means,
           const float* inverse_scales, size_t count, LogisticSlot* slots) {
  const DD d;
  const DI di;
  const DF df;
  const hn::Rebind<uint16_t, DD> d16;
  const hn::Rebind<uint32_t, DD> du;
  const int32_t unit = 1 << shares.unit_bits;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto half = hn::BitCast(di, hn::PromoteTo(du, hn::LoadU(d16, halves + i)));
    const auto negative = hn::Gt(half, hn::Set(di, 0x7fff));
    const auto place = hn::IfThenElse(negative, hn::Sub(hn::Set(di, 0x10000 - unit), half),
                                      hn::Add(hn::Set(di, 0x8000), half));
    const auto mean = hn::PromoteTo(d, hn::LoadU(df, means + i));
    const auto steps = hn::Mul(hn::PromoteTo(d, hn::LoadU(df, inverse_scales + i)),
                               hn::Set(d, LogisticShares::kSteps));
    const auto start =
        hn::IfThenZeroElse(hn::Eq(place, hn::Zero(di)), Below(shares, place, mean, steps));
    // Ordinal 0 begins at 0 and the last one ends at 2^30, whatever the distribution.
    const auto last = hn::Eq(place, hn::Set(di, 0x10000 - unit));
    const auto end = hn::IfThenElse(last, hn::Set(di, 1 << LogisticShares::kTotalBits),
                                    Below(shares, hn::Add(place, hn::Set(di, unit)), mean, steps));
    hn::StoreInterleaved2(hn::BitCast(du, start), hn::BitCast(du, hn::Sub(end, start)), du,
                          reinterpret_cast<uint32_t*>(slots + i));
  }
  ref::LogisticSlots(shares, halves + i, means + i, inverse_scales + i, count - i, slots + i);
}
#else
void Slots(const LogisticShares& shares, const uint16_t* halves, const float* means,
           // Without gathers the vector form is not faster.
           const float* inverse_scales, size_t count, LogisticSlot* slots) {
  ref::LogisticSlots(shares, halves, means, inverse_scales, count, slots);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Slots);

void LogisticSlots(const LogisticShares& shares, const uint16_t* halves, const float* means,
                   const float* inverse_scales, size_t count, LogisticSlot* slots) noexcept {
  HWY_DYNAMIC_DISPATCH(Slots)(shares, halves, means, inverse_scales, count, slots);
}

namespace ref {

void LogisticSlots(const LogisticShares& shares, const uint16_t* halves, const float* means,
                   const float* inverse_scales, size_t count, LogisticSlot* slots) noexcept {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t place = FindPlace(halves[i], shares.unit_bits);
    const uint32_t start = LogisticBelow(shares, place, means[i], inverse_scales[i]);
    const uint32_t end =
        LogisticBelow(shares, place + (1u << shares.unit_bits), means[i], inverse_scales[i]);
    slots[i] = {start, end - start};
  }
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
