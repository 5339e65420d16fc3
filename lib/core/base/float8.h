// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <bit>
#include <cstdint>

#include "lib/core/base/half.h"

namespace kv {

// OCP 8-bit floats: E4M3 has no infinities and one NaN, E5M2 is a cut binary16. Conversions round
// to nearest, ties to even, from the binary32 value: going through binary16 would round twice.

// What becomes of values beyond the largest finite one: as torch casts (NaN, or infinity for E5M2),
// or as GPUs convert for caches (the largest finite value; NaN stays NaN).
enum class Float8Overflow { kCast, kSaturate };

inline constexpr float kE4M3Max = 448, kE5M2Max = 57344;

namespace internal {

// Rounds a finite magnitude to `kMantissa` bits above subnormals of the quantum that `kMagic` has
// as its last place. The codes of a format go on across binades, so a carry is right by itself.
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
