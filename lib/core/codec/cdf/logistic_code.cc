// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/cdf/logistic_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kv {

const LogisticCode::Table LogisticCode::kTable;

// 1 / (1 + e^-x) of what the floors leave; multiplications alone, so that every machine has the
// same numbers.
LogisticCode::Table::Table() {
  constexpr double kShrink = 0.93941306281347579;  // e^(-1/16)
  constexpr double kWhole = kSlotTotal - (65536 << LogisticShares::kFloorBits);
  constexpr uint32_t kMiddle = kSpan * kSteps;
  double e = 1;
  for (uint32_t i = 0; i <= kMiddle; ++i, e *= kShrink) {
    below[kMiddle + i] = static_cast<uint32_t>(kWhole / (1 + e) + 0.5);
    below[kMiddle - i] = static_cast<uint32_t>(kWhole * e / (1 + e) + 0.5);
  }
  below[0] = 0;
  below[2 * kMiddle] = below[2 * kMiddle + 1] = static_cast<uint32_t>(kWhole);
}

// Near enough to start looking from; nothing depends on it.
uint32_t LogisticCode::Guess(uint32_t target, float mean, float inverse_scale) const {
  const float share = (static_cast<float>(target) + 0.5f) * (1.0f / kSlotTotal);
  const float value = mean + std::log(share / (1 - share)) / inverse_scale;
  const uint32_t bits = std::bit_cast<uint32_t>(value / shares_.scale);
  const uint32_t magnitude = ((bits & 0x7fffffff) + shares_.half_step) >> shares_.shift;
  const uint32_t limited = std::min<uint32_t>(magnitude, 0x7fff);
  return (bits >> 31) != 0 ? 0x7fff - limited : 0x8000 + limited;
}

uint32_t LogisticCode::Find(uint32_t target, float mean, float inverse_scale,
                            CodeSlot& slot) const {
  // Of the places that the target may be at, the first and the last.
  uint32_t first = 0, last = 0xffff;
  uint32_t place = Guess(target, mean, inverse_scale);
  for (uint32_t tries = 0;; ++tries) {
    // A guess is hardly ever off by more than one; where it is, halves find the place.
    const bool halve = tries >= 3;
    slot.start = Below(place, mean, inverse_scale);
    if (target < slot.start) {
      last = place - 1;
      place = halve ? first + (last - first) / 2 : last;
      continue;
    }
    const uint32_t end = Below(place + 1, mean, inverse_scale);
    if (target < end) {
      slot.size = end - slot.start;
      return place;
    }
    first = place + 1;
    place = halve ? first + (last - first) / 2 : first;
  }
}

void WriteSlots(std::span<const CodeSlot> slots, ByteWriter& out, Arena* arena) {
  uint64_t state = kSlotStateLow;
  ArenaVector<uint32_t> words(arena);
  words.reserve(slots.size());
  for (size_t i = slots.size(); i-- > 0;) {
    const CodeSlot& slot = slots[i];
    if (state >= (kSlotStateLow >> kSlotBits << 32) * slot.size) {
      words.push_back(static_cast<uint32_t>(state));
      state >>= 32;
    }
    state = (state / slot.size << kSlotBits) + state % slot.size + slot.start;
  }
  out.U64(state);
  for (size_t i = words.size(); i-- > 0;) out.U32(words[i]);
}

SlotReader::SlotReader(ByteReader& reader) : state_(reader.U64("state")) {
  words_at_ = reader.offset();
  words_ = reader.Take(reader.remaining(), "words");
  if (words_.size() % 4 != 0)
    throw Error(Finding::kTrailingBytes, "the coded values end with half a word").At(words_at_);
}

void SlotReader::Refill() {
  if (used_ == words_.size()) Refuse("the coded values end early");
  state_ = state_ << 32 | LoadLE<uint32_t>(words_.data() + used_);
  used_ += 4;
}

void SlotReader::CheckEnd() const {
  if (used_ != words_.size()) {
    throw Error(Finding::kTrailingBytes,
                fmt::format("{} bytes are left over", words_.size() - used_))
        .At(words_at_ + used_);
  }
  if (state_ != kSlotStateLow) Refuse("the coded values do not end where they began");
}

void SlotReader::Refuse(const char* what) const {
  throw Error(Finding::kBadPayload, what).At(words_at_ + used_);
}

}  // namespace kv
