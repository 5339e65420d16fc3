// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/base/hash.h"

namespace kv {

// A hash set of names, identified by their index in a list that the caller owns: a file may hold a
// million names, and a set of strings would take longer than reading them. The table is open and at
// most half full. It keeps half of each hash beside the index, so that a name is compared only if
// these agree. `name_at(place)` must return the name that was inserted under that index.
class NameTable {
 public:
  // Returns false and changes nothing if the name exists.
  template <typename NameAt>
  bool Insert(std::string_view name, uint32_t place, const NameAt& name_at) {
    if (2 * (names_ + 1) > slots_.size()) Grow(4 * slots_.size());
    const uint32_t hash = HashName(name);
    Slot& slot = slots_[FindSlot(name, hash, name_at)];
    if (slot.place != kFree) return false;
    slot = {hash, place};
    ++names_;
    return true;
  }

  // Inserts the places 0 to `count`, none of which was inserted before, and calls `repeated(place,
  // earlier)` for those whose name exists. Slots of a large table are not in any cache, so they are
  // prefetched some names ahead.
  template <typename NameAt, typename Repeated>
  void InsertAll(uint32_t count, const NameAt& name_at, const Repeated& repeated) {
    Reserve(count);
    std::array<uint32_t, kAhead> hashes;
    for (uint32_t i = 0; i < std::min(count, kAhead); ++i) hashes[i] = Ask(name_at(i));
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t hash = hashes[i % kAhead];
      Slot& slot = slots_[FindSlot(name_at(i), hash, name_at)];
      if (i + kAhead < count) hashes[i % kAhead] = Ask(name_at(i + kAhead));
      if (slot.place != kFree) {
        repeated(i, slot.place);
        continue;
      }
      slot = {hash, i};
      ++names_;
    }
  }

  template <typename NameAt>
  std::optional<uint32_t> Find(std::string_view name, const NameAt& name_at) const {
    if (slots_.empty()) return std::nullopt;
    const Slot& slot = slots_[FindSlot(name, HashName(name), name_at)];
    return slot.place == kFree ? std::nullopt : std::optional(slot.place);
  }

  // Makes room for this many names.
  void Reserve(size_t names) {
    if (2 * names > slots_.size()) Grow(std::bit_ceil(2 * names));
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Slot {
    uint32_t hash = 0, place = kFree;
  };

  static constexpr uint32_t kAhead = 16;
  uint32_t Ask(std::string_view name) const {
    const uint32_t hash = HashName(name);
    __builtin_prefetch(&slots_[hash & (slots_.size() - 1)], 1);
    return hash;
  }

  static uint32_t HashName(std::string_view name) {
    return static_cast<uint32_t>(Hash64(AsBytes(name)));
  }

  template <typename NameAt>
  size_t FindSlot(std::string_view name, uint32_t hash, const NameAt& name_at) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].place != kFree &&
           (slots_[at].hash != hash || std::string_view(name_at(slots_[at].place)) != name)) {
      at = (at + 1) & mask;
    }
    return at;
  }

  void Grow(size_t slots) {
    const std::vector<Slot> before = std::exchange(slots_, {});
    slots_.resize(std::max<size_t>(1024, slots));
    const size_t mask = slots_.size() - 1;
    for (const Slot& slot : before) {
      if (slot.place == kFree) continue;
      size_t at = slot.hash & mask;
      while (slots_[at].place != kFree) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t names_ = 0;
};

}  // namespace kv
