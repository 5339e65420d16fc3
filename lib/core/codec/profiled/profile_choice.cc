// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/core/codec/chunk_levels.h"
#include "lib/core/codec/profiled/profiled.h"

namespace kv {
namespace {

// Tables of a chunk's own are worth their bytes from here on: both ways are tried.
constexpr uint64_t kOwnTablesFrom = 256 << 10;
// A chunk that needs more than expected by one byte in so many is not what was learnt.
constexpr uint64_t kUnlikeOneIn = 48;
// Of a chunk, beside its values: states, and a first row that is hardly known.
constexpr uint64_t kChunkOverhead = 128;
// Values that are looked at where nobody says which layer they are of: a few with every entry, more
// with the entries that then cost least.
constexpr size_t kLookedAt = 512, kFirstLookedAt = 64, kKeptEntries = 4;

bool Serves(const ProfileEntry& entry, const ProfilePlace& place, DType dtype, uint64_t columns) {
  return entry.dtype == dtype && entry.columns % columns == 0 &&
         (!place.layer || *place.layer == entry.layer) &&
         (!place.is_value || *place.is_value == entry.is_value);
}

// Some of a chunk's values and those above them.
class SomeValues {
 public:
  SomeValues(const ChunkGrid& grid, ByteSpan raw) {
    const uint64_t first = grid.rows > 1 ? grid.columns : 0, values = grid.rows * grid.columns;
    // An odd step: all channels take part.
    const uint64_t step = std::max<uint64_t>(1, (values - first) / kLookedAt) | 1;
    has_above_ = first > 0;
    for (uint64_t i = first; i < values && count_ < kLookedAt; i += step) {
      std::memcpy(values_.data() + 2 * count_, raw.data() + 2 * i, 2);
      if (has_above_) std::memcpy(above_.data() + 2 * count_, raw.data() + 2 * (i - first), 2);
      column_[count_++] = static_cast<uint32_t>(i % grid.columns);
    }
    // In an order in which the first ones stand for all.
    for (size_t i = 0; i < count_; ++i) order_[i] = static_cast<uint16_t>(i * 67 % count_);
    if (count_ % 67 == 0) {
      for (size_t i = 0; i < count_; ++i) order_[i] = static_cast<uint16_t>(i);
    }
  }

  // What the first `count` of them cost with an entry's tables.
  uint64_t CostOf(const ProfileEntry& entry, const ProfileCoder& coder, size_t count) {
    if (!made_ || shape_.exponent_base != entry.shape.exponent_base ||
        shape_.symbol_bits != entry.shape.symbol_bits) {
      shape_ = entry.shape;
      made_ = true;
      ToSymbols(values_.data(), count_, shape_, symbols_.data());
      ToSymbols(above_.data(), count_, shape_, symbols_above_.data());
    }
    uint64_t cost = 0;
    for (size_t n = 0; n < std::min(count, count_); ++n) {
      const size_t i = order_[n];
      const uint8_t above = has_above_ ? symbols_above_[i] : entry.first[column_[i]];
      cost += coder.cost[size_t{coder.table_of[above]} << 8 | symbols_[i]];
    }
    return cost;
  }

 private:
  size_t count_ = 0;
  bool has_above_ = false, made_ = false;
  SymbolShape shape_;
  std::array<std::byte, 2 * kLookedAt> values_{}, above_{};
  std::array<uint8_t, kLookedAt> symbols_{}, symbols_above_{};
  std::array<uint32_t, kLookedAt> column_{};
  std::array<uint16_t, kLookedAt> order_{};
};

}  // namespace

std::optional<size_t> FindProfileEntry(const Profile& profile, const ProfilePlace& place,
                                       const ChunkShape& shape, ByteSpan raw, Arena* arena) {
  const ChunkGrid grid = GridOf(shape, raw.size());
  if (raw.empty() || raw.size() % (2 * grid.columns) != 0 || grid.columns > kMostProfileColumns ||
      (grid.rows > 1 && grid.columns < kRansLanes)) {
    return std::nullopt;
  }
  ArenaVector<std::pair<uint64_t, size_t>> serve(arena);  // cost, entry
  for (size_t i = 0; i < profile.entries().size(); ++i) {
    if (Serves(profile.entries()[i], place, shape.dtype, grid.columns)) serve.push_back({0, i});
  }
  if (serve.empty()) return std::nullopt;
  if (serve.size() == 1) return serve[0].second;
  SomeValues some(grid, raw);
  for (const size_t count : {kFirstLookedAt, kLookedAt}) {
    for (auto& [cost, entry] : serve)
      cost = some.CostOf(profile.entries()[entry], profile.CoderOf(entry), count);
    const size_t kept = count == kLookedAt ? 1 : std::min(kKeptEntries, serve.size());
    std::ranges::partial_sort(serve, serve.begin() + static_cast<std::ptrdiff_t>(kept));
    serve.resize(kept);
  }
  return serve[0].second;
}

EncodedChunk EncodeWithProfile(const Profile& profile, const ProfilePlace& place,
                               const ChunkShape& shape, ByteSpan raw, Effort effort,
                               CodecScratch& scratch) {
  const auto own = [&] { return EncodeChunk(shape, raw, effort, scratch); };
  if (effort < Effort::kDefault) return own();
  const Arena::Scope temporaries(&scratch.context.arena);
  const auto entry = FindProfileEntry(profile, place, shape, raw, &scratch.context.arena);
  if (!entry) return own();
  scratch.Expect(raw.size());
  EncodedChunk chunk{CodecId::kProfiled, scratch.NewPayload(), {}};
  const auto columns = static_cast<uint32_t>(GridOf(shape, raw.size()).columns);
  EncodeProfiled(profile, *entry, columns, raw, scratch, chunk.payload);
  const uint64_t expected =
      raw.size() / 2 * profile.entries()[*entry].expected / 8192 + kChunkOverhead;
  if (effort == Effort::kDefault && raw.size() < kOwnTablesFrom &&
      chunk.payload.size() < expected + expected / kUnlikeOneIn &&
      chunk.payload.size() < raw.size()) {
    return chunk;
  }
  EncodedChunk other = own();
  if (other.payload.size() <= chunk.payload.size()) std::swap(chunk, other);
  scratch.Recycle(std::move(other.payload));
  return chunk;
}

bool EncodeByAnyEntry(const ChunkShape& shape, ByteSpan raw, uint64_t, CodecScratch& scratch,
                      EncodedChunk& out) {
  if (scratch.profile == nullptr || raw.empty() || raw.size() % 2 != 0) return false;
  const auto entry = FindProfileEntry(*scratch.profile, {}, shape, raw, &scratch.context.arena);
  if (!entry) return false;
  const auto columns = static_cast<uint32_t>(GridOf(shape, raw.size()).columns);
  EncodeProfiled(*scratch.profile, *entry, columns, raw, scratch, out.payload);
  return true;
}

}  // namespace kv
