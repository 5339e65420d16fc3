// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kv {

// A logistic distribution in integers, as lib/core/codec/cdf/FORMAT.md has it.
struct LogisticShares {
  static constexpr uint32_t kTotalBits = 30;  // all shares together
  static constexpr uint32_t kSteps = 16;      // table steps per unit
  static constexpr uint32_t kSpan = 24;       // units on either side of 0
  static constexpr uint32_t kFloorBits = 4;   // every place owns 2^4

  const uint32_t* below = nullptr;  // 2 * kSpan * kSteps + 2 entries
  uint32_t half_step = 0;           // half of one step of a value, in the bits of a float
  uint32_t largest = 0;             // bits of the largest border
  int shift = 0;                    // of a value's bits, to be those of a float
  int unit_bits = 0;                // of a value that are always 0
  float scale = 1;
};

struct LogisticSlot {
  uint32_t start = 0, size = 0;
};

// Orders all 65536 bit patterns by value, from -NaN to +NaN. -0 and +0 are two places. Where
// the lowest bits of all values are 0, a value has as many places as these have patterns, and this
// is the first of them.
inline uint32_t PlaceOf(uint16_t half, int unit_bits = 0) {
  return (half & 0x8000) != 0 ? 0x10000u - (1u << unit_bits) - half : 0x8000u + half;
}

// Returns the finite value half way between a place and the one before it.
inline float LogisticBorder(const LogisticShares& shares, uint32_t place) {
  const int32_t from_zero = static_cast<int32_t>(place) - 0x8000;
  if (from_zero == 0) return 0;
  const uint32_t magnitude = static_cast<uint32_t>(from_zero < 0 ? -from_zero : from_zero);
  const uint32_t bits = std::min((magnitude << shares.shift) - shares.half_step, shares.largest);
  const float border = std::bit_cast<float>(bits) * shares.scale;
  return from_zero < 0 ? -border : border;
}

// Returns the share of 2^30 below a place: 0 for place 0, all of it for 65536.
inline uint32_t LogisticBelow(const LogisticShares& shares, uint32_t place, float mean,
                              float inverse_scale) {
  if (place == 0) return 0;
  if (place > 0xffff) return 1u << LogisticShares::kTotalBits;
  constexpr double kMiddle = LogisticShares::kSpan * LogisticShares::kSteps;
  const double step =
      (static_cast<double>(LogisticBorder(shares, place)) - static_cast<double>(mean)) *
          (static_cast<double>(inverse_scale) * LogisticShares::kSteps) +
      kMiddle;
  uint64_t fixed = 0;  // with 20 fractional bits
  if (step >= 2 * kMiddle) {
    fixed = uint64_t{2 * LogisticShares::kSpan * LogisticShares::kSteps} << 20;
  } else if (step > 0) {
    fixed = static_cast<uint64_t>(step * (1 << 20));
  }
  const uint64_t index = fixed >> 20, part = fixed & ((1 << 20) - 1);
  const uint64_t low = shares.below[index], high = shares.below[index + 1];
  return static_cast<uint32_t>(low + ((high - low) * part >> 20)) +
         (place << LogisticShares::kFloorBits);
}

// Computes the slot of each half float, by what it is expected to be and how sharply.
void LogisticSlots(const LogisticShares& shares, const uint16_t* halves, const float* means,
                   const float* inverse_scales, size_t count, LogisticSlot* slots) noexcept;

namespace ref {
void LogisticSlots(const LogisticShares& shares, const uint16_t* halves, const float* means,
                   const float* inverse_scales, size_t count, LogisticSlot* slots) noexcept;
}  // namespace ref

}  // namespace kv
