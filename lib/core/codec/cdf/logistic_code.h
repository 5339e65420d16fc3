// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "lib/core/base/bytes.h"

// Half floats under a logistic distribution, in integers: what share of 2^30 lies below a value.
namespace kv {

constexpr uint32_t kSlotBits = 30;
constexpr uint32_t kSlotTotal = 1u << kSlotBits;
struct CodeSlot {
  uint32_t start = 0, size = 0;
};

// All 65536 bit patterns in the order of their values, -NaN to +NaN; -0 and +0 are two places.
inline uint32_t PlaceOf(uint16_t half) {
  return (half & 0x8000) != 0 ? 0xffffu - half : 0x8000u + half;
}
inline uint16_t HalfAt(uint32_t place) {
  return static_cast<uint16_t>(place < 0x8000 ? 0xffff - place : place - 0x8000);
}

class LogisticCode {
 public:
  // Values are taken times a power of two, those of f16 times 2^112 more: see LmsLoad.
  LogisticCode(bool bfloat, float scale)
      : shift_(bfloat ? 16 : 13),
        half_step_(1u << (shift_ - 1)),
        largest_(std::bit_cast<uint32_t>(kLargest / std::max(scale, 1.0f))),
        scale_(scale) {}

  // Of at least 16.
  CodeSlot SlotOf(uint32_t place, float mean, float inverse_scale) const {
    const uint32_t start = Below(place, mean, inverse_scale);
    return {start, Below(place + 1, mean, inverse_scale) - start};
  }
  // The place whose slot has `target` in it.
  uint32_t Find(uint32_t target, float mean, float inverse_scale, CodeSlot& slot) const;

 private:
  static constexpr uint32_t kSteps = 16, kSpan = 24;  // per unit; units on either side of 0
  static constexpr uint32_t kFloorBits = 4;           // every place has 2^4 of its own
  struct Table {
    uint32_t below[2 * kSpan * kSteps + 2];
    Table();
  };
  static const Table kTable;

  // What lies below a place; 0 at 0 and all at 65536.
  uint32_t Below(uint32_t place, float mean, float inverse_scale) const {
    if (place == 0) return 0;
    if (place > 0xffff) return kSlotTotal;
    constexpr double kMiddle = kSpan * kSteps;
    const double step = (static_cast<double>(Border(place)) - static_cast<double>(mean)) *
                            (static_cast<double>(inverse_scale) * kSteps) +
                        kMiddle;
    uint64_t fixed = 0;  // 20 fractional bits
    if (step >= 2 * kMiddle) {
      fixed = uint64_t{2 * kSpan * kSteps} << 20;
    } else if (step > 0) {
      fixed = static_cast<uint64_t>(step * (1 << 20));
    }
    const uint64_t index = fixed >> 20, part = fixed & ((1 << 20) - 1);
    const uint64_t low = kTable.below[index], high = kTable.below[index + 1];
    return static_cast<uint32_t>(low + ((high - low) * part >> 20)) + (place << kFloorBits);
  }

  // Half way between a place and the one before it, finite.
  float Border(uint32_t place) const {
    const int32_t from_zero = static_cast<int32_t>(place) - 0x8000;
    if (from_zero == 0) return 0;
    const uint32_t magnitude = static_cast<uint32_t>(from_zero < 0 ? -from_zero : from_zero);
    uint32_t bits = (magnitude << shift_) - half_step_;
    if (bits > largest_) bits = largest_;
    const float border = std::bit_cast<float>(bits) * scale_;
    return from_zero < 0 ? -border : border;
  }
  uint32_t Guess(uint32_t target, float mean, float inverse_scale) const;

  static constexpr float kLargest = std::numeric_limits<float>::max();

  uint32_t shift_, half_step_;
  uint32_t largest_;  // borders are finite
  float scale_;
};

// Slots coded one after another and read in that order: one rANS state of 63 bits, renormalised in
// 32-bit words. After J. Duda's ANS.
constexpr uint64_t kSlotStateLow = uint64_t{1} << 31;

// The slot of the items [before, before + size) of `total` items of the same size; what is left of
// 2^30 belongs to none.
inline CodeSlot ShareOf(uint64_t before, uint64_t size, uint64_t total) {
  const uint64_t unit = kSlotTotal / total;
  return {static_cast<uint32_t>(before * unit), static_cast<uint32_t>(size * unit)};
}

// Appends the state and the words.
void WriteSlots(const std::vector<CodeSlot>& slots, ByteWriter& out);

// Takes the rest of `reader`.
class SlotReader {
 public:
  explicit SlotReader(ByteReader& reader);
  // Lies in the next slot.
  uint32_t target() const { return static_cast<uint32_t>(state_ & (kSlotTotal - 1)); }
  void Take(const CodeSlot& slot) {
    state_ = (state_ >> kSlotBits) * slot.size + target() - slot.start;
    if (state_ < kSlotStateLow) Refill();
  }
  // Throws kTrailingBytes, kBadPayload.
  void CheckEnd() const;
  [[noreturn]] void Refuse(const char* what) const;

 private:
  void Refill();

  uint64_t state_ = 0, words_at_ = 0;
  ByteSpan words_;
  size_t used_ = 0;
};

}  // namespace kv
