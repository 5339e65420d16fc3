// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <bit>
#include <cstdint>

namespace kv {

// IEEE binary16 and bfloat16 to binary32 and back, exact for every bit pattern (subnormals,
// infinities, NaN payloads), rounding to nearest, ties to even. These scalars are the specification
// of lib/core/kernels/convert.h.

inline float F16ToF32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24 is exact in binary32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    // NaN: keep the top payload bits and make it quiet, as F16C does.
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x33000001u) return sign;  // rounds to zero, as ties do
  if (magnitude < 0x38800000u) {             // subnormal result
    const uint32_t exponent = magnitude >> 23;
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126 - exponent;  // 14..24
    const uint32_t kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    const uint32_t half_way = 1u << (shift - 1);
    const uint32_t up = rest > half_way || (rest == half_way && (kept & 1));
    return static_cast<uint16_t>(sign | (kept + up));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

inline float BF16ToF32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

inline uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// OCP 8-bit floats: E4M3 has no infinities and one NaN, E5M2 is a cut binary16. Conversions round
// to nearest, ties to even, from the binary32 value: going through binary16 would round twice.

// Treatment of values beyond the largest finite one: as in torch's cast (NaN, or infinity for
// E5M2), or as GPUs convert for caches (the largest finite value; NaN stays NaN).
enum class Float8Overflow { kCast, kSaturate };

inline constexpr float kE4M3Max = 448, kE5M2Max = 57344;

namespace internal {

// Rounds a finite magnitude to `kMantissa` bits, and a subnormal result to whole subnormal quanta
// (the last place of kMagic). Codes are consecutive across binades, so a carry needs no handling.
template <int kMantissa, int kBias>
uint8_t RoundToFloat8(uint32_t magnitude) {
  constexpr int kShift = 23 - kMantissa;
  if (magnitude < static_cast<uint32_t>(128 - kBias) << 23) {
    // 2^(23 + e) has the quantum 2^e: the sum rounds to it, and the difference counts quanta.
    constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 23 + 1 - kBias - kMantissa) << 23;
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic);
    return static_cast<uint8_t>(std::bit_cast<uint32_t>(sum) - kMagic);
  }
  const uint32_t odd = (magnitude >> kShift) & 1;
  const uint32_t rounded = (magnitude + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
  return static_cast<uint8_t>(rounded - (static_cast<uint32_t>(127 - kBias) << kMantissa));
}

}  // namespace internal

inline uint8_t F32ToE4M3(float value, Float8Overflow overflow) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7f;
  if (magnitude > std::bit_cast<uint32_t>(kE4M3Max)) {
    if (overflow == Float8Overflow::kSaturate) return sign | 0x7e;
    // 464 is midway to the NaN above, and a tie goes to the even 448.
    return sign | (magnitude > std::bit_cast<uint32_t>(464.0f) ? 0x7f : 0x7e);
  }
  return sign | internal::RoundToFloat8<3, 7>(magnitude);
}

inline uint8_t F32ToE5M2(float value, Float8Overflow overflow) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7f;
  if (magnitude > std::bit_cast<uint32_t>(kE5M2Max)) {
    if (overflow == Float8Overflow::kSaturate) return sign | 0x7b;
    return sign | (magnitude >= std::bit_cast<uint32_t>(61440.0f) ? 0x7c : 0x7b);
  }
  return sign | internal::RoundToFloat8<2, 15>(magnitude);
}

inline float E5M2ToF32(uint8_t code) {
  return F16ToF32(static_cast<uint16_t>(static_cast<uint16_t>(code) << 8));
}

inline float E4M3ToF32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 120) << 23) | mantissa << 20);
  // Subnormal: mantissa * 2^-9 is exact.
  return std::bit_cast<float>(sign |
                              std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-9f));
}

}  // namespace kv
