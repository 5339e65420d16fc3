// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/arena.h"

#include <algorithm>
#include <functional>

namespace kv {

Arena::Scope::Scope(Arena* arena) : arena_(arena) {
  if (arena == nullptr) return;
  block_ = arena->block_;
  used_ = arena->used_;
  ++arena->depth_;
}

Arena::Scope::~Scope() {
  if (arena_ == nullptr) return;
  arena_->block_ = block_;
  arena_->used_ = used_;
  if (--arena_->depth_ == 0) arena_->JoinBlocks();
}

Arena::Block Arena::NewBlock(size_t size) {
  auto* data = static_cast<std::byte*>(::operator new[](size, std::align_val_t{kAlignment}));
  return {std::unique_ptr<std::byte[], Free>(data), size};
}

void* Arena::Allocate(size_t bytes) {
  if (depth_ == 0) return ::operator new (bytes, std::align_val_t{kAlignment});
  if (bytes > SIZE_MAX - kAlignment) throw std::bad_array_new_length();
  bytes = std::max(RoundedUp(bytes), kAlignment);
  while (block_ < blocks_.size() && blocks_[block_].size - used_ < bytes) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) blocks_.push_back(NewBlock(std::max(bytes, kFirstBlock)));
  std::byte* const p = blocks_[block_].data.get() + used_;
  used_ += bytes;
  return p;
}

void Arena::Release(void* p, size_t bytes) noexcept {
  auto* const at = static_cast<std::byte*>(p);
  const auto holds = [&](const Block& block) {
    const std::byte* const begin = block.data.get();
    return std::less_equal<>()(begin, at) && std::less<>()(at, begin + block.size);
  };
  if (std::none_of(blocks_.begin(), blocks_.end(), holds)) {
    ::operator delete (p, std::align_val_t{kAlignment});
    return;
  }
  // Only the most recent allocation can be freed for reuse; others wait for the end of the scope.
  if (block_ >= blocks_.size()) return;
  bytes = std::max(RoundedUp(bytes), kAlignment);
  if (used_ >= bytes && blocks_[block_].data.get() + (used_ - bytes) == at) used_ -= bytes;
}

// Replaces several blocks by one, so that the next task of this size allocates none.
void Arena::JoinBlocks() noexcept {
  if (blocks_.size() < 2) return;
  size_t size = 0;
  for (const Block& block : blocks_) size += block.size;
  blocks_.clear();
  block_ = used_ = 0;
  try {
    blocks_.push_back(NewBlock(size));
  } catch (const std::bad_alloc&) {  // after a failure the next task starts over with small blocks
  }
}

}  // namespace kv
