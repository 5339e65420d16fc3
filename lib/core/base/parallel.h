// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

namespace kv {

// Returns the number of CPUs that this process may use: affinity mask and cgroup quota respected,
// at least 1.
int UsableCpus();

// Throws kNoResources with the text that `what` is unavailable.
[[noreturn]] void ThrowNoThread(const std::exception& failure, std::string_view what);

// A fixed set of threads. The calling thread takes part, so a pool of one thread starts none and
// runs everything inline. Results never depend on the number of threads: work is distributed by
// index and consumed in index order.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // throws kNoResources
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body(0) ... body(count - 1), each once, and returns when all are done. If bodies throw,
  // the exception of the lowest index is rethrown, and indices not yet started are skipped.
  void ParallelFor(uint64_t count, const std::function<void(uint64_t)>& body);

  // A pipeline in bounded memory: `next` makes tasks until it returns nullopt, `work` runs on any
  // thread, `emit` receives the results in the order of the tasks. `next` and `emit` run on the
  // calling thread. At most `window` tasks are between next and emit.
  template <typename Task, typename Result>
  void RunOrdered(uint64_t window, const std::function<std::optional<Task>()>& next,
                  const std::function<Result(Task&)>& work,
                  const std::function<void(Result&)>& emit);

 private:
  void Submit(std::function<void()> job);
  bool RunOne(std::unique_lock<std::mutex>& lock);
  void WorkerLoop(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::jthread> workers_;
};

template <typename Task, typename Result>
void ThreadPool::RunOrdered(uint64_t window, const std::function<std::optional<Task>()>& next,
                            const std::function<Result(Task&)>& work,
                            const std::function<void(Result&)>& emit) {
  struct Slot {
    Task task;
    std::optional<Result> result;
    std::exception_ptr failure;
    bool done = false;
  };
  std::deque<std::shared_ptr<Slot>> slots;
  // After an exception, queued jobs must not run with captures that no longer exist: they are
  // drained.
  struct Drain {
    ThreadPool& pool;
    std::deque<std::shared_ptr<Slot>>& slots;
    ~Drain() {
      std::unique_lock lock(pool.mutex_);
      for (auto& slot : slots) {
        while (!slot->done) {
          if (!pool.RunOne(lock)) pool.changed_.wait(lock);
        }
      }
    }
  } drain{*this, slots};

  bool exhausted = false;
  for (;;) {
    while (!exhausted && slots.size() < window) {
      std::optional<Task> task = next();
      if (!task) {
        exhausted = true;
        break;
      }
      auto slot = std::make_shared<Slot>(Slot{std::move(*task), std::nullopt, nullptr, false});
      slots.push_back(slot);
      const auto job = [this, slot, &work] {
        std::optional<Result> result;
        std::exception_ptr failure;
        try {
          result.emplace(work(slot->task));
        } catch (...) {
          failure = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        slot->result = std::move(result);
        slot->failure = failure;
        slot->done = true;
        changed_.notify_all();
      };
      try {
        Submit(job);
        // no memory for the queue: the job will not run, so emit must not wait for it
      } catch (...) {
        slots.pop_back();
        throw;
      }
    }
    if (slots.empty()) return;
    {
      std::unique_lock lock(mutex_);
      while (!slots.front()->done) {
        if (!RunOne(lock)) changed_.wait(lock);
      }
    }
    const std::shared_ptr<Slot> slot = slots.front();
    slots.pop_front();
    if (slot->failure) std::rethrow_exception(slot->failure);
    emit(*slot->result);
  }
}

// Interrupts an embedded command: while the object lives, ParallelFor calls of its thread stop
// between two indices with kCancelled once `stopped` is set.
class StopScope {
 public:
  explicit StopScope(const std::atomic<bool>& stopped);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  const std::atomic<bool>* before_;
};

}  // namespace kv
