// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/base/bytes.h"

// Codes half floats under a logistic distribution, in integers: each value has a slot of 2^30.
namespace kv {

constexpr uint32_t kSlotBits = 30;
constexpr uint32_t kSlotTotal = 1u << kSlotBits;
struct CodeSlot {
  uint32_t start = 0, size = 0;
};

// Orders all 65536 bit patterns by value, from -NaN to +NaN. -0 and +0 are two places.
inline uint32_t PlaceOf(uint16_t half) {
  return (half & 0x8000) != 0 ? 0xffffu - half : 0x8000u + half;
}
inline uint16_t HalfAt(uint32_t place) {
  return static_cast<uint16_t>(place < 0x8000 ? 0xffff - place : place - 0x8000);
}

class LogisticCode {
 public:
  // Values are multiplied by `scale`, a power of two, and those of f16 by 2^112 more (see LmsLoad).
  LogisticCode(bool bfloat, float scale)
      : shift_(bfloat ? 16 : 13),
        half_step_(1u << (shift_ - 1)),
        largest_(std::bit_cast<uint32_t>(kLargest / std::max(scale, 1.0f))),
        scale_(scale) {}

  // Returns the slot of a place. Every value keeps a probability of at least 2^4 / 2^30.
  CodeSlot SlotOf(uint32_t place, float mean, float inverse_scale) const {
    const uint32_t start = Below(place, mean, inverse_scale);
    return {start, Below(place + 1, mean, inverse_scale) - start};
  }
  // Returns the place whose slot contains `target`.
  uint32_t Find(uint32_t target, float mean, float inverse_scale, CodeSlot& slot) const;

 private:
  static constexpr uint32_t kSteps = 16;     // table steps per unit
  static constexpr uint32_t kSpan = 24;      // units on either side of 0
  static constexpr uint32_t kFloorBits = 4;  // every place owns 2^4 of the slots' 2^30
  struct Table {
    uint32_t below[2 * kSpan * kSteps + 2];
    Table();
  };
  static const Table kTable;

  // Returns the share of 2^30 below a place: 0 for place 0, all of it for 65536.
  uint32_t Below(uint32_t place, float mean, float inverse_scale) const {
    if (place == 0) return 0;
    if (place > 0xffff) return kSlotTotal;
    constexpr double kMiddle = kSpan * kSteps;
    const double step = (static_cast<double>(Border(place)) - static_cast<double>(mean)) *
                            (static_cast<double>(inverse_scale) * kSteps) +
                        kMiddle;
    uint64_t fixed = 0;  // with 20 fractional bits
    if (step >= 2 * kMiddle) {
      fixed = uint64_t{2 * kSpan * kSteps} << 20;
    } else if (step > 0) {
      fixed = static_cast<uint64_t>(step * (1 << 20));
    }
    const uint64_t index = fixed >> 20, part = fixed & ((1 << 20) - 1);
    const uint64_t low = kTable.below[index], high = kTable.below[index + 1];
    return static_cast<uint32_t>(low + ((high - low) * part >> 20)) + (place << kFloorBits);
  }

  // Returns the finite value half way between a place and the one before it.
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
  uint32_t largest_;  // bits of the largest border, so that borders stay finite
  float scale_;
};

// Slots are written one after another and read in the same order, by one rANS state of 63 bits that
// is renormalised in 32-bit words (J. Duda's ANS).
constexpr uint64_t kSlotStateLow = uint64_t{1} << 31;

// Returns the slot of the items [before, before + size) out of `total` equal items. The remainder
// of 2^30 belongs to no item.
inline CodeSlot ShareOf(uint64_t before, uint64_t size, uint64_t total) {
  const uint64_t unit = kSlotTotal / total;
  return {static_cast<uint32_t>(before * unit), static_cast<uint32_t>(size * unit)};
}

// Appends the state and the words.
void WriteSlots(std::span<const CodeSlot> slots, ByteWriter& out, Arena* arena = nullptr);

// Reads slots from the rest of a frame.
class SlotReader {
 public:
  explicit SlotReader(ByteReader& reader);
  // A number that lies in the next slot.
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
