// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kv {

// A logistic distribution in integers, as specified in lib/core/codec/cdf/FORMAT.md.
//
// The slot of a value is the share of the distribution between its two borders, each half way to
// the adjacent value. Every ordinal (FindPlace) has a minimum share: no value is impossible.
struct LogisticShares {
  static constexpr uint32_t kTotalBits = 30;  // bits of the sum of all shares
  static constexpr uint32_t kSteps = 16;      // table steps per unit
  static constexpr uint32_t kSpan = 24;       // units on either side of 0
  static constexpr uint32_t kFloorBits = 4;   // every ordinal has a share of at least 2^4

  const uint32_t* below = nullptr;  // the tabulated function: 2 * kSpan * kSteps + 2 entries
  uint32_t half_step = 0;           // half of a value's last bit, as the bits of a float
  uint32_t largest = 0;             // bits of the largest finite border
  int shift = 0;                    // shifts the bits of a value to those of a float
  int unit_bits = 0;                // number of low bits that are 0 in every value
  float scale = 1;
};

struct LogisticSlot {
  uint32_t start = 0, size = 0;
};

// Orders all 65536 bit patterns by value, from -NaN to +NaN; -0 and +0 have two ordinals. If the
// lowest bits of all values are 0, a value has the ordinals of all patterns of these bits, and this
// returns the first.
inline uint32_t FindPlace(uint16_t half, int unit_bits = 0) {
  return (half & 0x8000) != 0 ? 0x10000u - (1u << unit_bits) - half : 0x8000u + half;
}

// Returns the finite value half way between an ordinal's and the preceding one's.
inline float LogisticBorder(const LogisticShares& shares, uint32_t place) {
  const int32_t from_zero = static_cast<int32_t>(place) - 0x8000;
  if (from_zero == 0) return 0;
  const uint32_t magnitude = static_cast<uint32_t>(from_zero < 0 ? -from_zero : from_zero);
  const uint32_t bits = std::min((magnitude << shares.shift) - shares.half_step, shares.largest);
  const float border = std::bit_cast<float>(bits) * shares.scale;
  return from_zero < 0 ? -border : border;
}

// Returns the share of 2^30 below an ordinal: 0 for ordinal 0, 2^30 for 65536.
inline uint32_t LogisticBelow(const LogisticShares& shares, uint32_t place, float mean,
                              float inverse_scale) {
  if (place == 0) return 0;
  if (place > 0xffff) return 1u << LogisticShares::kTotalBits;
  constexpr double kMiddle = LogisticShares::kSpan * LogisticShares::kSteps;
  const double step =
      (static_cast<double>(LogisticBorder(shares, place)) - static_cast<double>(mean)) *
          (static_cast<double>(inverse_scale) * LogisticShares::kSteps) +
      kMiddle;
  uint64_t fixed = 0;  // place in the table, in units of 2^-20 steps
  if (step >= 2 * kMiddle) {
    fixed = uint64_t{2 * LogisticShares::kSpan * LogisticShares::kSteps} << 20;
  } else if (step > 0) {
    fixed = static_cast<uint64_t>(step * (1 << 20));
  }
  // Interpolates between two entries of the table, in integers.
  const uint64_t index = fixed >> 20, part = fixed & ((1 << 20) - 1);
  const uint64_t low = shares.below[index], high = shares.below[index + 1];
  return static_cast<uint32_t>(low + ((high - low) * part >> 20)) +
         (place << LogisticShares::kFloorBits);
}

// Computes the slot of each half float under its own mean and sharpness.
void LogisticSlots(const LogisticShares& shares, const uint16_t* halves, const float* means,
                   const float* inverse_scales, size_t count, LogisticSlot* slots) noexcept;

namespace ref {
void LogisticSlots(const LogisticShares& shares, const uint16_t* halves, const float* means,
                   const float* inverse_scales, size_t count, LogisticSlot* slots) noexcept;
}  // namespace ref

}  // namespace kv
