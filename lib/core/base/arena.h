// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

// Memory for the temporaries of one task, kept for the next. Containers use it through ArenaVector;
// their contents must not outlive the scope in which they were filled.
namespace kv {

class Arena {
 public:
  // While a scope is open, memory comes from the arena; closing it frees what was allocated since
  // it was opened. Scopes nest. Without a scope, memory comes from the heap.
  class Scope {
   public:
    explicit Scope(Arena* arena);  // nullptr: no effect
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena* arena_;
    size_t block_ = 0, used_ = 0;
  };

  void* Allocate(size_t bytes);  // aligned for every vector type
  void Release(void* p, size_t bytes) noexcept;

 private:
  static constexpr size_t kAlignment = 64, kFirstBlock = size_t{256} << 10;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{kAlignment}); }
  };
  struct Block {
    std::unique_ptr<std::byte[], Free> data;
    size_t size = 0;
  };
  static size_t RoundedUp(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static Block NewBlock(size_t size);
  void JoinBlocks() noexcept;

  std::vector<Block> blocks_;
  size_t block_ = 0, used_ = 0;  // current block, and the bytes used of it
  int depth_ = 0;                // open scopes
};

// Allocates from an arena, or from the heap if there is none. Copies of a container use the same
// arena.
template <typename T>
class ArenaAllocator {
 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  ArenaAllocator() = default;
  ArenaAllocator(Arena* arena) : arena_(arena) {}  // NOLINT: an arena is an allocator
  template <typename U>
  ArenaAllocator(const ArenaAllocator<U>& other) : arena_(other.arena()) {}  // NOLINT

  T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    const size_t bytes = count * sizeof(T);
    return static_cast<T*>(arena_ == nullptr ? ::operator new(bytes) : arena_->Allocate(bytes));
  }
  void deallocate(T* p, size_t count) noexcept {
    if (arena_ == nullptr) return ::operator delete(p);
    arena_->Release(p, count * sizeof(T));
  }
  Arena* arena() const { return arena_; }
  bool operator==(const ArenaAllocator&) const = default;

 private:
  Arena* arena_ = nullptr;
};

template <typename T>
using ArenaVector = std::vector<T, ArenaAllocator<T>>;

// Lends objects that are expensive to make (compression contexts, buffers) from task to task, and
// makes only as many as tasks run at once. Also used instead of thread-local objects: if memory
// runs out while the C library registers a thread's destructor, it ends the program.
template <typename T>
class Reuse {
 public:
  // Holds a borrowed object; its destructor gives the object back to the pool.
  class Lease {
   public:
    explicit Lease(Reuse& pool) : pool_(pool), object_(pool.Take()) {}
    ~Lease() { pool_.Return(std::move(object_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    T& operator*() const { return *object_; }

   private:
    Reuse& pool_;
    std::unique_ptr<T> object_;
  };

 private:
  std::unique_ptr<T> Take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      idle_.reserve(made_ + 1);  // returning the object then cannot fail
      auto object = std::make_unique<T>();
      ++made_;
      return object;
    }
    auto object = std::move(idle_.back());
    idle_.pop_back();
    return object;
  }
  void Return(std::unique_ptr<T> object) noexcept {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(object));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> idle_;
  size_t made_ = 0;
};

}  // namespace kv
