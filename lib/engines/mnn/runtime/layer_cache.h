// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The rows of one layer as an engine holds them, their comparison with the snapshot, and caches of
// decoded ranges: the engine's own, and that of its design.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/base/dtype.h"
#include "lib/core/snapshot/select.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::mnn::runtime {

// K or V of one layer as the runtime stores it.
struct TensorShape {
  DType dtype = DType::kF16;
  uint32_t heads = 0, head_dim = 0, element_bytes = 0;

  uint64_t head_bytes() const { return uint64_t{head_dim} * element_bytes; }  // bytes of one token
  uint64_t row_bytes() const { return heads * head_bytes(); }
};

// Tokens [begin, begin + tokens) of a layer's cache. Element (token, head, dim) lies at
// data + token * token_step + head * head_step + dim * element_bytes.
struct CachePiece {
  uint64_t begin = 0, tokens = 0;
  const std::byte* data = nullptr;
  uint64_t token_step = 0, head_step = 0;
};
using PieceVisitor = std::function<void(const CachePiece&)>;

// K and V of a range, each [head][token][dim]. V is empty if the layer has none. The bytes are
// shared, so that a worker can read them while their owner still holds them.
struct RangeBytes {
  std::array<std::shared_ptr<const Bytes>, 2> tensors;

  uint64_t size() const;
};

// The place of the first byte that differed from the snapshot.
struct Difference {
  uint32_t layer = 0;
  bool is_value = false;
  uint32_t head = 0;
  uint64_t position = 0;  // position of the token that differs
};

// Counts comparisons, by hash, of the running cache with the snapshot's rows. Ranges are compared
// whenever bytes come out of the lossless path, and everything that is held is compared once more
// at the end.
struct ContentCheck {
  uint64_t ranges = 0, bytes = 0, mismatches = 0;
  std::optional<Difference> first;

  bool equal() const { return mismatches == 0; }
  void Add(const ContentCheck& other);
};

// Holds the rows of one layer as an engine does: in one growing buffer per tensor, laid out as
// [token][head][dim]. Rows come from a snapshot by their position.
class LayerCache {
 public:
  // A buffer that is too small grows to `expand_tokens` more than needed.
  LayerCache(const LayerKv& source, uint64_t expand_tokens);

  void Append(uint64_t begin, uint64_t end);  // appends these positions of the source
  void Compact(const KeepPlan& kept);         // keeps these rows; the buffers keep their size
  void PopFront(uint64_t tokens);             // drops the first rows; the buffers shrink
  LayerCache TakeFront(uint64_t tokens);      // moves the first rows out; the buffers shrink
  void Zero(uint64_t begin, uint64_t tokens);
  bool FlipBitOfLast();  // flips a bit of K's last row; false if there are no rows

  RangeBytes Gather(uint64_t begin, uint64_t tokens) const;
  void Scatter(bool is_value, uint64_t begin, uint64_t tokens, ByteSpan from);

  const LayerKv& source() const { return *source_; }
  bool has_values() const { return source_->v.has_value(); }
  const TensorShape& shape(bool is_value) const { return shapes_[is_value]; }
  uint64_t size() const { return positions_.size(); }
  uint64_t capacity() const { return capacity_; }
  std::span<const uint32_t> positions() const { return positions_; }
  uint64_t row_bytes() const { return shapes_[0].row_bytes() + shapes_[1].row_bytes(); }
  CachePiece Piece(bool is_value) const;
  // Compares K and V of these rows with the source.
  void Compare(uint64_t begin, uint64_t tokens, ContentCheck& check) const;

 private:
  const LayerKv* source_;
  std::array<TensorShape, 2> shapes_;  // K, V
  std::array<Bytes, 2> rows_;
  std::vector<uint32_t> positions_;
  uint64_t expand_tokens_, capacity_ = 0;  // in tokens
};

// Compares the rows at these positions, [token][head][dim] or [head][token][dim], with those of the
// source.
void CompareRows(const LayerKv& source, bool is_value, std::span<const uint32_t> positions,
                 ByteSpan rows, Order order, ContentCheck& check);

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
    bool seeded = false;  // true: the copy is of raw bytes, not from a decoder
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
    uint64_t hash = 0;               // hash of the raw bytes

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
