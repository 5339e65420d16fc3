// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>

namespace kv {

// The sequences that a cell belongs to. Caches have millions of cells, and nearly all belong to one
// sequence, so one id takes 16 bytes and no allocation.
class SequenceIds {
 public:
  SequenceIds() = default;
  SequenceIds(std::initializer_list<int32_t> ids) { Assign({ids.begin(), ids.size()}); }
  explicit SequenceIds(std::span<const int32_t> ids) { Assign(ids); }
  SequenceIds(const SequenceIds& other) { Assign(other.ids()); }
  SequenceIds(SequenceIds&& other) noexcept
      : many_(std::move(other.many_)), one_(other.one_), size_(std::exchange(other.size_, 0)) {}
  SequenceIds& operator=(SequenceIds other) noexcept {
    many_ = std::move(other.many_);
    one_ = other.one_;
    size_ = other.size_;
    return *this;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int32_t* begin() const { return size_ > 1 ? many_.get() : &one_; }
  const int32_t* end() const { return begin() + size_; }
  std::span<const int32_t> ids() const { return {begin(), size_}; }
  void push_back(int32_t id) {
    if (size_ > 0 && std::has_single_bit(size_)) Reserve(size_ + 1);
    (size_ == 0 ? one_ : many_[size_]) = id;
    ++size_;
  }

  bool operator==(const SequenceIds& other) const { return *this == other.ids(); }
  bool operator==(std::span<const int32_t> other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  void Assign(std::span<const int32_t> ids) {
    if (ids.size() > 1) Reserve(static_cast<uint32_t>(ids.size()));
    std::copy(ids.begin(), ids.end(), ids.size() > 1 ? many_.get() : &one_);
    size_ = static_cast<uint32_t>(ids.size());
  }
  // Room for more than one; capacities are powers of two, so that size_ tells when one is full.
  void Reserve(uint32_t count) {
    std::unique_ptr<int32_t[]> many(new int32_t[std::bit_ceil(count)]);
    std::copy(begin(), end(), many.get());
    many_ = std::move(many);
  }

  std::unique_ptr<int32_t[]> many_;  // when more than one
  int32_t one_ = 0;
  uint32_t size_ = 0;
};

}  // namespace kv
