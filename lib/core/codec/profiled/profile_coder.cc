// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <bit>

#include "lib/core/codec/integer_log.h"
#include "lib/core/codec/profiled/profile.h"

namespace kv {
namespace {

// What a value costs that its table lacks, in 256ths of a bit.
constexpr uint16_t kExceptionCost = 30 * 256;

}  // namespace

ProfileCoder::ProfileCoder(const ProfileEntry& entry) {
  const ContextModel& model = entry.model;
  std::copy(model.table_of.begin(), model.table_of.end(), table_of.begin());
  MakeSlots(model, slots);
  MakeEncoderSymbols(model, encoder_symbols);
  const std::vector<uint16_t>& order = SignedOrder(entry.shape.symbol_bits);
  nearest.resize(model.tables.size() * 256);
  cost.assign(nearest.size(), kExceptionCost);
  for (size_t t = 0; t < model.tables.size(); ++t) {
    auto table = model.tables[t];
    for (uint32_t s = 0; s < table.size(); ++s) {
      if (!entry.shape.CanDecode(s)) table[s] = 0;
    }
    // From below, then from above where that is nearer.
    int64_t last = -1;
    std::array<int64_t, 256> below;
    for (size_t i = 0; i < order.size(); ++i) {
      if (table[order[i]] != 0) last = static_cast<int64_t>(i);
      below[i] = last;
    }
    last = -1;
    for (size_t i = order.size(); i-- > 0;) {
      if (table[order[i]] != 0) last = static_cast<int64_t>(i);
      const auto here = static_cast<int64_t>(i);
      const bool up = below[i] < 0 || (last >= 0 && last - here < here - below[i]);
      nearest[t << 8 | order[i]] =
          static_cast<uint8_t>(order[static_cast<size_t>(up ? last : below[i])]);
      const uint32_t f = table[order[i]];
      if (f != 0) {
        cost[t << 8 | order[i]] =
            static_cast<uint16_t>(((uint64_t{kRansTotalBits} << 16) - Log2Of(f)) >> 8);
      }
    }
  }
  if (entry.rows.empty()) return;
  places_.resize(std::bit_ceil(size_t{2} * entry.row_count()));
  for (uint32_t i = 0; i < entry.row_count(); ++i) {
    const ByteSpan row = ByteSpan(entry.rows).subspan(i * entry.row_bytes(), entry.row_bytes());
    size_t at = Hash64(row) & (places_.size() - 1);
    while (places_[at] != 0) at = (at + 1) & (places_.size() - 1);
    places_[at] = i + 1;
  }
}

std::optional<uint32_t> ProfileCoder::FindRow(const ProfileEntry& entry, ByteSpan row) const {
  if (places_.empty() || row.size() != entry.row_bytes()) return std::nullopt;
  for (size_t at = Hash64(row) & (places_.size() - 1); places_[at] != 0;
       at = (at + 1) & (places_.size() - 1)) {
    const uint32_t number = places_[at] - 1;
    const ByteSpan known = ByteSpan(entry.rows).subspan(number * entry.row_bytes(), row.size());
    if (std::memcmp(known.data(), row.data(), row.size()) == 0) return number;
  }
  return std::nullopt;
}

}  // namespace kv
