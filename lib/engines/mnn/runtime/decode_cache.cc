// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/runtime/decode_cache.h"

#include <algorithm>

namespace kv::mnn::runtime {
namespace {

bool IsSamePlace(const RangeIdentity& a, const RangeIdentity& b) {
  return a.begin == b.begin && a.tokens == b.tokens;
}

bool HasSameBytes(const RangeIdentity& a, const RangeIdentity& b) {
  return a.raw_bytes == b.raw_bytes && a.compressed_bytes == b.compressed_bytes;
}

bool IsMatch(const RangeIdentity& a, const RangeIdentity& b) {
  return HasSameBytes(a, b) && ((a.raw_hash != 0 && a.raw_hash == b.raw_hash) ||
                                (a.blob_hash != 0 && a.blob_hash == b.blob_hash));
}

}  // namespace

const DecodeCache::Entry* DecodeCache::Find(const RangeIdentity& id, bool same_place) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return IsMatch(entry.id, id) && (!same_place || IsSamePlace(entry.id, id));
  });
  if (found == entries_.end()) return nullptr;
  std::rotate(found, found + 1, entries_.end());
  return &entries_.back();
}

void DecodeCache::Insert(Entry entry, bool by_place) {
  if (capacity_ == 0) return;
  std::erase_if(entries_, [&](const Entry& old) {
    return IsMatch(old.id, entry.id) ||
           (by_place && IsSamePlace(old.id, entry.id) && HasSameBytes(old.id, entry.id));
  });
  entries_.push_back(std::move(entry));
  if (entries_.size() > capacity_) entries_.pop_front();
}

uint64_t DecodeCache::bytes() const {
  uint64_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.decoded.size();
  return sum;
}

std::shared_ptr<const Bytes> RangeCache::Find(const Key& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second;
}

bool RangeCache::Insert(const Key& key, std::shared_ptr<const Bytes> bytes) {
  Erase(key);
  if (bytes->size() > capacity_ - bytes_) return false;
  bytes_ += bytes->size();
  entries_.emplace(key, std::move(bytes));
  return true;
}

void RangeCache::Erase(const Key& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  bytes_ -= found->second->size();
  entries_.erase(found);
}

}  // namespace kv::mnn::runtime
