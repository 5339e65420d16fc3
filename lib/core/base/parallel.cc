// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <new>
#include <string>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/base/system.h"

namespace kv {
namespace {

thread_local const std::atomic<bool>* stop_of_thread = nullptr;

}  // namespace

StopScope::StopScope(const std::atomic<bool>& stopped) : before_(stop_of_thread) {
  stop_of_thread = &stopped;
}
StopScope::~StopScope() { stop_of_thread = before_; }

int UsableCpus() {
  int cpus = std::max(1, sys::Cpus());
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "QUOTA PERIOD" or "max PERIOD"
  std::string quota, period;
  if (file >> quota >> period) {
    const double allowed =
        ParseNumber<double>(quota).value_or(0) / ParseNumber<double>(period).value_or(1);
    if (allowed > 0) cpus = std::min(cpus, std::max(1, static_cast<int>(allowed + 0.5)));
  }
  return cpus;
}

void ThrowNoThread(const std::exception& failure, std::string_view what) {
  throw Error(Finding::kNoResources, "cannot start {}: {}", what, failure.what())
      .Hint("use -T 1, which starts no threads");
}

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) {
    try {
      workers_.emplace_back([this](const std::stop_token& stop) { WorkerLoop(stop); });
    } catch (const std::exception& failure) {  // threads that were started end with the object
      ThrowNoThread(failure, fmt::format("thread {} of {}", i + 1, threads));
    }
  }
}

ThreadPool::~ThreadPool() = default;  // jthread requests the stop, then joins

void ThreadPool::Submit(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

// Runs one queued job outside the lock. Returns false if there is none.
bool ThreadPool::RunOne(std::unique_lock<std::mutex>& lock) {
  if (jobs_.empty()) return false;
  std::function<void()> job = std::move(jobs_.front());
  jobs_.pop_front();
  lock.unlock();
  job();
  lock.lock();
  return true;
}

void ThreadPool::WorkerLoop(const std::stop_token& stop) {
  const CLocale locale;
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !jobs_.empty(); })) RunOne(lock);
}

void ThreadPool::ParallelFor(uint64_t count, const std::function<void(uint64_t)>& body) {
  struct Shared {
    std::atomic<uint64_t> next{0};
    std::atomic<bool> failed{false};
    uint64_t failed_index = UINT64_MAX;
    std::exception_ptr failure;
    uint64_t running = 0;  // guarded by the pool's mutex, like the two above
  } shared;
  const std::atomic<bool>* const stop = stop_of_thread;
  const auto work = [&] {
    for (uint64_t i; !shared.failed && (i = shared.next.fetch_add(1)) < count;) {
      try {
        if (stop != nullptr && *stop) throw Error(Finding::kCancelled, "cancelled");
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (i < shared.failed_index) {
          shared.failed_index = i;
          shared.failure = std::current_exception();
        }
        shared.failed = true;
      }
    }
  };
  const uint64_t helpers = std::min<uint64_t>(workers_.size(), count > 0 ? count - 1 : 0);
  for (uint64_t i = 0; i < helpers; ++i) {
    {
      const std::lock_guard lock(mutex_);
      ++shared.running;
    }
    try {
      Submit([&] {
        work();
        const std::lock_guard lock(mutex_);
        --shared.running;
        changed_.notify_all();
      });
    } catch (const std::bad_alloc&) {  // without memory for the queue, fewer threads help
      const std::lock_guard lock(mutex_);
      --shared.running;
      break;
    }
  }
  work();
  std::unique_lock lock(mutex_);
  while (shared.running > 0) {
    if (!RunOne(lock)) changed_.wait(lock);
  }
  if (shared.failure) std::rethrow_exception(shared.failure);
}

}  // namespace kv
