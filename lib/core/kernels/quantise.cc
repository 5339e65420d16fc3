// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Quantisation to q8_0 and 8-bit floats on vectors (quantise.h); the other block types go to the
// scalar reference. Results must equal the engines' to the last bit, so every operation is rounded
// like theirs, and blocks for which vectors would differ (NaN, infinity, overflow of a reciprocal)
// are left to the reference.

#include "lib/core/kernels/quantise.h"

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/quantise.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void QuantiseQ8_0(const float* values, size_t count, std::byte* out, Q8Rounding rounding) {
  ref::QuantiseBlocks(DType::kQ8_0, {values, count}, out, rounding);
}

void DequantiseQ8_0(const std::byte* blocks, float* out, size_t count) {
  ref::DequantiseQ8_0(blocks, {out, count});
}

void QuantiseFloat8(DType dtype, const float* values, size_t count, float scale,
                    Float8Overflow overflow, uint8_t* out) {
  ref::QuantiseFloat8(dtype, {values, count}, scale, overflow, out);
}

void DequantiseFloat8(DType dtype, const uint8_t* codes, size_t count, float scale, float* out) {
  ref::DequantiseFloat8(dtype, {codes, count}, scale, out);
}

#else

constexpr size_t kBlock = 32;

// Four to sixteen lanes: a block of 32 values is a whole number of vectors.
using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
constexpr size_t kLanes = hn::MaxLanes(DF()), kVectors = kBlock / kLanes;

// Rounds halves away from zero, as roundf: adding 0.5 would round 0.49999997 up.
hn::Vec<DI> RoundedAway(hn::Vec<DF> x) {
  const DF df;
  const DI di;
  const auto whole = hn::Trunc(x);
  const auto rest = hn::Abs(hn::Sub(x, whole));  // exact
  const auto one = hn::CopySign(hn::Set(df, 1.0f), x);
  const auto up = hn::IfThenElseZero(hn::Ge(rest, hn::Set(df, 0.5f)), one);
  return hn::ConvertTo(di, hn::Add(whole, up));
}

void QuantiseQ8_0(const float* values, size_t count, std::byte* out, Q8Rounding rounding) {
  const DF df;
  const hn::Rebind<int8_t, DF> d8;
  for (size_t i = 0; i < count; i += kBlock, out += 2 + kBlock) {
    hn::Vec<DF> x[kVectors];
    auto most = hn::Zero(df);
    for (size_t v = 0; v < kVectors; ++v) {
      x[v] = hn::LoadU(df, values + i + v * kLanes);
      most = hn::Max(most, hn::Abs(x[v]));
    }
    const float amax = hn::GetLane(hn::MaxOfLanes(df, most));
    const float d = amax / 127.0f;
    if (!(amax <= 3.4028235e38f)) {  // NaN or infinity: the reference defines what is stored
      ref::QuantiseBlocks(DType::kQ8_0, {values + i, kBlock}, out, rounding);
      continue;
    }
    // The two forms of the reciprocal differ in the last bit, and engines differ in which they use.
    float id = 0;
    if (rounding == Q8Rounding::kAvx) {
      id = amax != 0 ? 127.0f / amax : 0.0f;
    } else {
      id = d != 0 ? 1.0f / d : 0.0f;
    }
    if (!(id <= 3.4028235e38f)) {  // 127 / amax overflows, so products could be NaN
      ref::QuantiseBlocks(DType::kQ8_0, {values + i, kBlock}, out, rounding);
      continue;
    }
    StoreLE(out, F32ToF16(d));
    const auto factor = hn::Set(df, id);
    for (size_t v = 0; v < kVectors; ++v) {
      const auto scaled = hn::Mul(x[v], factor);
      const auto code =
          rounding == Q8Rounding::kReference ? RoundedAway(scaled) : hn::NearestInt(scaled);
      hn::StoreU(hn::DemoteTo(d8, code), d8, reinterpret_cast<int8_t*>(out + 2 + v * kLanes));
    }
  }
}

void DequantiseQ8_0(const std::byte* blocks, float* out, size_t count) {
  const DF df;
  const DI di;
  const hn::Rebind<int8_t, DF> d8;
  for (size_t i = 0; i < count; i += kBlock, blocks += 2 + kBlock) {
    const auto d = hn::Set(df, F16ToF32(LoadLE<uint16_t>(blocks)));
    for (size_t v = 0; v < kVectors; ++v) {
      const auto code = hn::LoadU(d8, reinterpret_cast<const int8_t*>(blocks + 2 + v * kLanes));
      hn::StoreU(hn::Mul(d, hn::ConvertTo(df, hn::PromoteTo(di, code))), df, out + i + v * kLanes);
    }
  }
}

// Constants of the two 8-bit formats.
struct Format8 {
  int mantissa, bias;
  float most, last;  // the largest value, and the largest float that rounds to it
  uint32_t most_code, beyond_code;
};

constexpr Format8 kE4M3 = {3, 7, kE4M3Max, 464.0f, 0x7e, 0x7f};
// 61439.996 is the float below 61440, which rounds to infinity.
constexpr Format8 kE5M2 = {2, 15, kE5M2Max, 61439.996f, 0x7b, 0x7c};

// Performs the steps of F32ToE4M3 or F32ToE5M2 on all lanes.
template <int kMantissa, int kBias>
hn::Vec<DU> ToFloat8(hn::Vec<DF> value, const Format8& format, Float8Overflow overflow) {
  const DF df;
  const DU du;
  constexpr int kShift = 23 - kMantissa;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80u));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto absolute = hn::BitCast(df, magnitude);
  // Rounds to nearest even by a carry into the kept bits, and rebases the exponent.
  const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(du, 1u));
  const auto carried = hn::Add(hn::Add(magnitude, hn::Set(du, (1u << (kShift - 1)) - 1)), odd);
  const auto normal = hn::Sub(hn::ShiftRight<kShift>(carried),
                              hn::Set(du, static_cast<uint32_t>(127 - kBias) << kMantissa));
  // Small values: adding a power of two whose last bit is the format's quantum makes the adder
  // round to it.
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 23 + 1 - kBias - kMantissa) << 23;
  const auto magic = hn::BitCast(df, hn::Set(du, kMagic));
  const auto small = hn::Sub(hn::BitCast(du, hn::Add(absolute, magic)), hn::Set(du, kMagic));
  const auto is_small =
      hn::Lt(absolute, hn::BitCast(df, hn::Set(du, static_cast<uint32_t>(128 - kBias) << 23)));
  auto code = hn::IfThenElse(hn::RebindMask(du, is_small), small, normal);
  const auto is_beyond = hn::RebindMask(du, hn::Gt(absolute, hn::Set(df, format.most)));
  code = hn::IfThenElse(is_beyond, hn::Set(du, format.most_code), code);
  if (overflow == Float8Overflow::kCast) {
    const auto is_lost = hn::RebindMask(du, hn::Gt(absolute, hn::Set(df, format.last)));
    code = hn::IfThenElse(is_lost, hn::Set(du, format.beyond_code), code);
  }
  code = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), hn::Set(du, 0x7fu), code);
  return hn::Or(code, sign);
}

template <int kMantissa, int kBias>
void QuantiseAs(const Format8& format, const float* values, size_t count, float scale,
                Float8Overflow overflow, uint8_t* out) {
  const DF df;
  const hn::Rebind<uint8_t, DF> d8;
  const auto divisor = hn::Set(df, scale);
  for (size_t i = 0; i + kLanes <= count; i += kLanes) {
    const auto x = hn::Div(hn::LoadU(df, values + i), divisor);
    hn::StoreU(hn::TruncateTo(d8, ToFloat8<kMantissa, kBias>(x, format, overflow)), d8, out + i);
  }
}

void QuantiseFloat8(DType dtype, const float* values, size_t count, float scale,
                    Float8Overflow overflow, uint8_t* out) {
  const bool is_e4m3 = dtype == DType::kF8E4M3;
  is_e4m3 ? QuantiseAs<3, 7>(kE4M3, values, count, scale, overflow, out)
          : QuantiseAs<2, 15>(kE5M2, values, count, scale, overflow, out);
  const size_t done = count / kLanes * kLanes;
  ref::QuantiseFloat8(dtype, {values + done, count - done}, scale, overflow, out + done);
}

// Moves exponent and mantissa to a float's places and corrects the bias. Subnormals are computed as
// multiples of their quantum instead: a float with the same bits would be subnormal too, and slow.
template <int kMantissa, int kBias>
hn::Vec<DF> FromFloat8(hn::Vec<DU> code) {
  const DF df;
  const DI di;
  const DU du;
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80u)));
  const auto magnitude = hn::And(code, hn::Set(du, 0x7fu));
  const auto bits = hn::ShiftLeft<23 - kMantissa>(magnitude);
  const auto normal = hn::Add(bits, hn::Set(du, static_cast<uint32_t>(127 - kBias) << 23));
  const auto quantum =
      hn::BitCast(df, hn::Set(du, static_cast<uint32_t>(127 + 1 - kBias - kMantissa) << 23));
  const auto small = hn::Mul(hn::ConvertTo(df, hn::BitCast(di, magnitude)), quantum);
  const auto is_small = hn::Lt(magnitude, hn::Set(du, 1u << kMantissa));
  auto value = hn::IfThenElse(is_small, hn::BitCast(du, small), normal);
  if (kMantissa == 3) {
    // E4M3 has a single NaN per sign; E5M2 has infinities and NaNs like a half.
    const auto is_nan = hn::Eq(magnitude, hn::Set(du, 0x7fu));
    value = hn::IfThenElse(is_nan, hn::Set(du, 0x7fc00000u), value);
  } else {
    const auto is_special = hn::Gt(magnitude, hn::Set(du, 0x7bu));
    value = hn::IfThenElse(is_special, hn::Or(bits, hn::Set(du, 0x7f800000u)), value);
  }
  return hn::BitCast(df, hn::Or(value, sign));
}

template <int kMantissa, int kBias>
void DequantiseAs(const uint8_t* codes, size_t count, float scale, float* out) {
  const DF df;
  const DU du;
  const hn::Rebind<uint8_t, DF> d8;
  const auto factor = hn::Set(df, scale);
  for (size_t i = 0; i + kLanes <= count; i += kLanes) {
    const auto code = hn::PromoteTo(du, hn::LoadU(d8, codes + i));
    hn::StoreU(hn::Mul(FromFloat8<kMantissa, kBias>(code), factor), df, out + i);
  }
}

void DequantiseFloat8(DType dtype, const uint8_t* codes, size_t count, float scale, float* out) {
  dtype == DType::kF8E4M3 ? DequantiseAs<3, 7>(codes, count, scale, out)
                          : DequantiseAs<2, 15>(codes, count, scale, out);
  const size_t done = count / kLanes * kLanes;
  ref::DequantiseFloat8(dtype, {codes + done, count - done}, scale, out + done);
}

#endif

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(QuantiseQ8_0);
HWY_EXPORT(DequantiseQ8_0);
HWY_EXPORT(QuantiseFloat8);
HWY_EXPORT(DequantiseFloat8);

void QuantiseBlocks(DType dtype, std::span<const float> values, std::byte* out,
                    Q8Rounding rounding) noexcept {
  if (dtype != DType::kQ8_0) return ref::QuantiseBlocks(dtype, values, out, rounding);
  HWY_DYNAMIC_DISPATCH(QuantiseQ8_0)(values.data(), values.size(), out, rounding);
}

void DequantiseQ8_0(const std::byte* blocks, std::span<float> out) noexcept {
  HWY_DYNAMIC_DISPATCH(DequantiseQ8_0)(blocks, out.data(), out.size());
}

void QuantiseFloat8(DType dtype, std::span<const float> values, float scale,
                    Float8Overflow overflow, uint8_t* out) noexcept {
  HWY_DYNAMIC_DISPATCH(QuantiseFloat8)(dtype, values.data(), values.size(), scale, overflow, out);
}

void DequantiseFloat8(DType dtype, std::span<const uint8_t> codes, float scale,
                      float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(DequantiseFloat8)(dtype, codes.data(), codes.size(), scale, out);
}

}  // namespace kv
#endif
