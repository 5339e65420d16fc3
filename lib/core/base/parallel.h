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
  template <typename Task, typename Result>
  class Slot;

  void Submit(std::function<void()> job);
  bool RunOne(std::unique_lock<std::mutex>& lock);
  void WorkerLoop(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::jthread> workers_;
};

// A task between next and emit. After an exception, jobs in the queue must not run with captures
// that no longer exist: each slot waits for its job.
template <typename Task, typename Result>
class ThreadPool::Slot {
 public:
  // Throws if there is no memory for the job; then it does not run.
  Slot(ThreadPool& pool, Task task, const std::function<Result(Task&)>& work)
      : pool_(pool), task_(std::move(task)) {
    pool.Submit([this, &work] {
      try {
        result_.emplace(work(task_));
      } catch (...) {
        failure_ = std::current_exception();
      }
      const std::lock_guard lock(pool_.mutex_);
      done_ = true;
      pool_.changed_.notify_all();
    });
  }
  ~Slot() { Wait(); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  Result& Take() {
    Wait();
    if (failure_) std::rethrow_exception(failure_);
    return *result_;
  }

 private:
  void Wait() {
    std::unique_lock lock(pool_.mutex_);
    while (!done_) {
      if (!pool_.RunOne(lock)) pool_.changed_.wait(lock);
    }
  }

  ThreadPool& pool_;
  Task task_;
  std::optional<Result> result_;
  std::exception_ptr failure_;
  bool done_ = false;
};

template <typename Task, typename Result>
void ThreadPool::RunOrdered(uint64_t window, const std::function<std::optional<Task>()>& next,
                            const std::function<Result(Task&)>& work,
                            const std::function<void(Result&)>& emit) {
  std::deque<Slot<Task, Result>> slots;
  for (bool exhausted = false;;) {
    while (!exhausted && slots.size() < window) {
      std::optional<Task> task = next();
      exhausted = !task;
      if (task) slots.emplace_back(*this, std::move(*task), work);
    }
    if (slots.empty()) return;
    emit(slots.front().Take());
    slots.pop_front();
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
