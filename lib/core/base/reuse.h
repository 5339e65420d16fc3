// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace kv {

// Hands objects that are expensive to make (compression contexts, buffers) from task to task; it
// makes only as many as tasks run at once. For what a thread would keep, too: where memory runs
// out, the C library ends a program that cannot note the destructor of a thread's object.
template <typename T>
class Reuse {
 public:
  // Gives the object back when it is destroyed.
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
      idle_.reserve(made_ + 1);  // the object's return cannot fail then
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
