// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "lib/engines/mnn/runtime/layer_cache.h"

namespace kv::mnn::runtime {

// What the engine compares when it looks for decoded bytes.
struct RangeIdentity {
  uint64_t begin = 0, tokens = 0;
  uint64_t raw_hash = 0, blob_hash = 0;  // 0: not computed
  uint64_t raw_bytes = 0, compressed_bytes = 0;
};

// The engine's cache of decoded ranges: least recently used out first, its capacity a number of
// entries. A key holds neither layer nor dtype nor geometry; only hashes keep strangers apart.
class DecodeCache {
 public:
  struct Entry {
    RangeIdentity id;
    RangeBytes decoded;
    bool seeded = false;  // filled with a copy of the raw bytes, not by a decoder
  };

  explicit DecodeCache(uint64_t capacity) : capacity_(capacity) {}

  // A hit becomes the most recently used. `same_place`: begin and tokens must match as well.
  const Entry* Find(const RangeIdentity& id, bool same_place);
  // Replaces entries of the same bytes and hash, and with `by_place` those of the same place and
  // bytes.
  void Insert(Entry entry, bool by_place);
  void Clear() { entries_.clear(); }

  uint64_t size() const { return entries_.size(); }
  uint64_t bytes() const;

 private:
  uint64_t capacity_;
  std::deque<Entry> entries_;  // most recently used last
};

// The cache of the intended design: keyed by what the bytes are, its capacity in bytes. Every token
// reads every block of every layer in the same order, so that "least recently used" would throw out
// each range just before it is read again. What is in stays instead until its block is gone, and a
// full cache takes nothing more: of a cyclic reader it serves capacity over need, which no other
// rule betters.
class RangeCache {
 public:
  struct Key {
    uint32_t layer = 0;
    bool is_value = false;
    DType dtype = DType::kF16;
    uint64_t begin = 0, tokens = 0;  // first position, and how many
    uint64_t hash = 0;               // of the raw bytes

    auto operator<=>(const Key&) const = default;
  };

  explicit RangeCache(uint64_t capacity_bytes) : capacity_(capacity_bytes) {}

  std::shared_ptr<const Bytes> Find(const Key& key) const;
  // Whether there was room.
  bool Insert(const Key& key, std::shared_ptr<const Bytes> bytes);
  void Erase(const Key& key);

  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t capacity_, bytes_ = 0;
  std::map<Key, std::shared_ptr<const Bytes>> entries_;
};

}  // namespace kv::mnn::runtime
