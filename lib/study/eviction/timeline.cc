// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/timeline.h"

#include <algorithm>

#include "lib/core/base/error.h"

namespace kv::eviction {

uint64_t LayerSchedule::evictions_in_effect(uint64_t end) const {
  return static_cast<uint64_t>(
      std::count_if(evictions.begin(), evictions.end(), [&](const Eviction& eviction) {
        return eviction.kept < eviction.length_before && eviction.token + 1 < end;
      }));
}

uint64_t LengthWalk::At(uint64_t position) {
  const std::vector<Eviction>& all = schedule_.evictions;
  const uint64_t before = position + (schedule_.within_step ? 1 : 0);
  while (next_ < all.size() && all[next_].token < before) ++next_;
  if (next_ == 0) return position + 1;
  return all[next_ - 1].kept + (position - all[next_ - 1].token);
}

uint32_t LayerPlan::last_seen(uint32_t unit, uint64_t position) const {
  if (unit >= last_seen_.size() || position >= last_seen_[unit].size()) return kStays;
  return last_seen_[unit][position];
}

void LayerPlan::Drop(uint32_t unit, uint64_t position, uint64_t token) {
  if (last_seen_.size() < units) last_seen_.resize(units);
  std::vector<uint32_t>& of_unit = last_seen_[unit];
  if (of_unit.size() <= position) of_unit.resize(position + 1, kStays);
  if (of_unit[position] == kStays) of_unit[position] = static_cast<uint32_t>(token);
}

void LayerPlan::Keep(const Eviction& event, std::span<const KeepPlan> held) {
  KV_ASSERT(held.size() == units);
  for (uint32_t unit = 0; unit < units; ++unit) {
    uint64_t next = 0;
    const auto drop_up_to = [&](uint64_t end) {
      for (; next < end; ++next) Drop(unit, next, event.token);
    };
    for (const KeepRange& range : held[unit]) {
      drop_up_to(range.begin);
      next = range.end();
    }
    drop_up_to(event.token + 1);
  }
  events.push_back(event);
}

KeepPlan LayerPlan::HeldBefore(uint32_t unit, uint64_t position) const {
  KeepPlan held;
  if (unit >= last_seen_.size()) {
    Append(held, {0, static_cast<uint32_t>(position)});
    return held;
  }
  const std::vector<uint32_t>& of_unit = last_seen_[unit];
  const uint64_t known = std::min<uint64_t>(position, of_unit.size());
  for (uint64_t p = 0; p < known; ++p) {
    if (of_unit[p] >= position) Append(held, {static_cast<uint32_t>(p), 1});
  }
  Append(held, {static_cast<uint32_t>(known), static_cast<uint32_t>(position - known)});
  return held;
}

}  // namespace kv::eviction
