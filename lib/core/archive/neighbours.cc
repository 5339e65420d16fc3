// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/neighbours.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/archive/records.h"

namespace kv {
namespace {

// Limit of the cache of decoded chunks. It must hold K of several layers, because K of all layers
// often precedes V of all layers.
constexpr uint64_t kMostKeptBytes = uint64_t{96} << 20;
// Limit of taps per column; the time grows with their square.
constexpr uint64_t kMostTaps = 576;
constexpr uint64_t kLeastRowsToLearn = 64;
constexpr uint64_t kMostNeighbourBytes = uint64_t{8} << 20;

uint64_t CountColumns(const ChunkHead& head) { return uint64_t{head.heads} * head.units; }

}  // namespace

bool CanBeNeighbour(const ChunkHead& head) {
  return head.kind != ChunkKind::kOpaque && head.head_begin == 0 && head.unit_begin == 0 &&
         head.raw_bytes <= kMostNeighbourBytes && FitsLayers(head.shape());
}

void NeighbourIndex::Add(size_t place, const ChunkHead& head) {
  if (CanBeNeighbour(head))
    places_.emplace(Key{head.layer, head.kind, head.token_begin, head.tokens}, place);
}

std::optional<size_t> NeighbourIndex::Find(const ChunkHead& of, const Neighbour& neighbour) const {
  const ChunkKind kind = neighbour.is_value ? ChunkKind::kValue : ChunkKind::kKey;
  const auto at = places_.find(Key{neighbour.layer, kind, of.token_begin, of.tokens});
  if (at == places_.end()) return std::nullopt;
  return at->second;
}

std::shared_ptr<NeighbourCache::Entry> NeighbourCache::FindEntry(size_t place) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Entry>& entry = entries_[place];
  if (entry == nullptr) entry = std::make_shared<Entry>();
  return entry;
}

std::shared_ptr<const Bytes> NeighbourCache::Find(size_t place) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(place);
    if (at == entries_.end()) return nullptr;
    entry = at->second;
  }
  const std::lock_guard lock(entry->mutex);
  return entry->raw;
}

// A caller that decodes a chunk already has the chunks that it needs, so no two callers can wait
// for each other.
std::shared_ptr<const Bytes> NeighbourCache::Get(size_t place, const Decoder& decode) {
  const std::shared_ptr<Entry> entry = FindEntry(place);
  std::shared_ptr<const Bytes> raw;
  {
    const std::lock_guard lock(entry->mutex);
    if (entry->failure) throw *entry->failure;
    if (entry->raw != nullptr) return entry->raw;
    try {
      raw = std::make_shared<const Bytes>(decode(place));
    } catch (const Error& error) {
      entry->failure = error;
      throw;
    }
    entry->raw = raw;
  }
  Keep(place, raw);
  return raw;
}

void NeighbourCache::Keep(size_t place, const std::shared_ptr<const Bytes>& raw) {
  std::vector<std::shared_ptr<Entry>> old;  // freed after the lock is released
  const std::lock_guard lock(mutex_);
  kept_.emplace_back(place, raw->size());
  kept_bytes_ += raw->size();
  while (kept_bytes_ > kMostKeptBytes && kept_.size() > 1) {
    const auto at = entries_.find(kept_.front().first);
    if (at != entries_.end()) {
      old.push_back(std::move(at->second));
      entries_.erase(at);
    }
    kept_bytes_ -= kept_.front().second;
    kept_.pop_front();
  }
}

NeighbourPlan::NeighbourPlan(const Source& source, std::span<const ChunkHead> heads, uint32_t most,
                             const Profile* profile)
    : source_(&source), profile_(profile), most_(most), heads_(heads) {
  uint64_t largest = 1;
  for (size_t place = 0; place < heads_.size(); ++place) {
    index_.Add(place, heads_[place]);
    if (!CanBeNeighbour(heads_[place])) continue;
    layers_.push_back(heads_[place].layer);
    largest = std::max(largest, heads_[place].raw_bytes);
  }
  // Readers accept no set whose K and V together need more than kMostNeededBytes.
  most_ = static_cast<uint32_t>(std::min<uint64_t>(most_, kMostNeededBytes / (2 * largest)));
  std::sort(layers_.begin(), layers_.end());
  layers_.erase(std::unique(layers_.begin(), layers_.end()), layers_.end());
}

size_t NeighbourPlan::PlaceOfLayer(uint32_t layer) const {
  return static_cast<size_t>(std::ranges::lower_bound(layers_, layer) - layers_.begin());
}

std::optional<size_t> NeighbourPlan::FindRegression(const ChunkHead& head,
                                                    size_t first_layer) const {
  if (profile_ == nullptr) return std::nullopt;
  const Regressions& regressions = profile_->regressions();
  const size_t found = regressions.Find(head.layer, head.kind == ChunkKind::kValue);
  if (found == regressions.list.size()) return std::nullopt;
  // The profile may be of another model, whose K are wider.
  const auto rotates = [&](const ChunkHead& key) {
    const Rotation& rotation = regressions.rotation;
    return FitsRotation(rotation.distance, rotation.angles.size(), CountColumns(key));
  };
  for (const Neighbour& one : regressions.list[found].neighbours) {
    const std::optional<size_t> place = index_.Find(head, one);
    if (!place || PlaceOfLayer(one.layer) < first_layer ||
        one.columns > CountColumns(heads_[*place]) || (!one.is_value && !rotates(heads_[*place])))
      return std::nullopt;
  }
  return found;
}

NeighbourPlan::Choice NeighbourPlan::Of(const ChunkHead& head) const {
  Choice choice;
  if (most_ < 2 || !CanBeNeighbour(head)) return choice;
  // Another chunk may hold the same tokens of the same layer; then this one cannot be found as a
  // neighbour.
  const size_t at = PlaceOfLayer(head.layer);
  const auto position = static_cast<uint32_t>(at % most_);
  const bool is_value = head.kind == ChunkKind::kValue;
  choice.depth = 2 * position + (is_value ? 1 : 0);
  choice.regression = FindRegression(head, at - position);
  if (head.tokens < kLeastRowsToLearn) return choice;
  const auto look_at = [&](uint32_t layer, bool value) {
    const std::optional<size_t> place = index_.Find(head, {layer, value, 0});
    if (place) {
      const uint64_t columns = std::min<uint64_t>(CountColumns(heads_[*place]), UINT16_MAX);
      choice.neighbours.push_back({layer, value, static_cast<uint16_t>(columns)});
    }
  };
  if (is_value) look_at(head.layer, false);
  if (position > 0) {
    look_at(layers_[at - 1], is_value);
    look_at(layers_[at - 1], !is_value);
  }
  for (Neighbour& one : choice.neighbours) {
    const uint64_t share = kMostTaps / choice.neighbours.size();
    one.columns = static_cast<uint16_t>(std::min<uint64_t>(one.columns, share));
  }
  return choice;
}

NeighbourChunk NeighbourPlan::Rows::Read(const Neighbour& neighbour) const {
  const std::optional<size_t> place = plan_.index_.Find(of_, neighbour);
  KV_ASSERT(place.has_value());
  const ChunkHead& head = plan_.heads_[*place];
  const ByteSpan file = plan_.source_->files[head.file].data->bytes();
  Bytes raw(head.raw_bytes);
  kvz::GatherChunk(head, file.subspan(head.source_offset, head.extent_bytes), raw);
  return {head.dtype, std::make_shared<const Bytes>(std::move(raw))};
}

}  // namespace kv
