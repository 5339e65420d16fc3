// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Caches of decoded ranges: the engine's own, and that of its design.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "lib/engines/mnn/runtime/layer_cache.h"

namespace kv::mnn::runtime {

// The fields that the engine compares to find decoded bytes.
struct RangeIdentity {
  uint64_t begin = 0, tokens = 0;
  uint64_t raw_hash = 0, blob_hash = 0;  // 0: not computed
  uint64_t raw_bytes = 0, compressed_bytes = 0;

  bool IsAt(const RangeIdentity& other) const {
    return begin == other.begin && tokens == other.tokens;
  }
  bool HasSameSize(const RangeIdentity& other) const {
    return raw_bytes == other.raw_bytes && compressed_bytes == other.compressed_bytes;
  }
  bool Matches(const RangeIdentity& other) const {
    return HasSameSize(other) && ((raw_hash != 0 && raw_hash == other.raw_hash) ||
                                  (blob_hash != 0 && blob_hash == other.blob_hash));
  }
};

// The engine's cache of decoded ranges. Its capacity is a number of entries, and it evicts the
// least recently used. A key holds neither the layer, the dtype nor the geometry, so only hashes
// distinguish ranges of different layers.
class DecodeCache {
 public:
  struct Entry {
    RangeIdentity id;
    RangeBytes decoded;
    bool seeded = false;  // true: a copy of the raw bytes, which no decoder made
  };

  explicit DecodeCache(uint64_t capacity) : capacity_(capacity) {}

  // Finds an entry and makes it the most recently used. With `same_place`, begin and tokens must
  // match too.
  const Entry* Find(const RangeIdentity& id, bool same_place) {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.id.Matches(id) && (!same_place || entry.id.IsAt(id));
    });
    if (found == entries_.end()) return nullptr;
    std::rotate(found, found + 1, entries_.end());
    return &entries_.back();
  }

  // Inserts an entry and removes those with the same size and hash and, with `by_place`, those with
  // the same position and size.
  void Insert(Entry entry, bool by_place) {
    if (capacity_ == 0) return;
    std::erase_if(entries_, [&](const Entry& old) {
      return old.id.Matches(entry.id) ||
             (by_place && old.id.IsAt(entry.id) && old.id.HasSameSize(entry.id));
    });
    entries_.push_back(std::move(entry));
    if (entries_.size() > capacity_) entries_.pop_front();
  }
  void Clear() { entries_.clear(); }

  uint64_t size() const { return entries_.size(); }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Entry& entry : entries_) sum += entry.decoded.size();
    return sum;
  }

 private:
  uint64_t capacity_;
  std::deque<Entry> entries_;  // most recently used last
};

// The cache of the intended design. Its keys identify the bytes, and its capacity is in bytes.
// Every token reads every block of every layer in the same order, so a least-recently-used rule
// would evict each range just before it is read again. Instead, entries stay until their block is
// gone, and a full cache takes no more. A cyclic reader then finds the share capacity / need of its
// ranges here, and no rule can do better.
class RangeCache {
 public:
  struct Key {
    uint32_t layer = 0;
    bool is_value = false;
    DType dtype = DType::kF16;
    uint64_t begin = 0, tokens = 0;  // first position and length
    uint64_t hash = 0;               // of the raw bytes

    auto operator<=>(const Key&) const = default;
  };

  explicit RangeCache(uint64_t capacity_bytes) : capacity_(capacity_bytes) {}

  std::shared_ptr<const Bytes> Find(const Key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : found->second;
  }

  // Returns true if there was room.
  bool Insert(const Key& key, std::shared_ptr<const Bytes> bytes) {
    Erase(key);
    if (bytes->size() > capacity_ - bytes_) return false;
    bytes_ += bytes->size();
    entries_.emplace(key, std::move(bytes));
    return true;
  }

  void Erase(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    bytes_ -= found->second->size();
    entries_.erase(found);
  }

  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t capacity_, bytes_ = 0;
  std::map<Key, std::shared_ptr<const Bytes>> entries_;
};

}  // namespace kv::mnn::runtime
