// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <atomic>
#include <cstdint>

#include "lib/core/base/error.h"

namespace kv {

// Receives progress of long operations; the library only counts, the program draws. May be called
// from any thread.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void Begin(uint64_t total_bytes) = 0;
  virtual void Advance(uint64_t bytes) = 0;
};

// Tells whether a call is running on an object, and whether it has been asked to stop. Each change
// is one atomic step, so that a request stops the call running at that moment and never the next
// one.
class CallState {
 public:
  // Returns false if another call is running.
  bool Begin() {
    State idle = State::kIdle;
    return state_.compare_exchange_strong(idle, State::kRunning, std::memory_order_acquire);
  }
  void End() { state_.store(State::kIdle, std::memory_order_release); }
  // Decides that the running call succeeds: later requests have no effect. Throws kCancelled if a
  // request came first.
  void Commit() {
    State running = State::kRunning;
    state_.compare_exchange_strong(running, State::kCommitted, std::memory_order_relaxed);
    StopIfCancelled();
  }
  // Returns true if a running call will now end with kCancelled. Safe from any thread and from
  // signal handlers.
  bool Cancel() {
    State running = State::kRunning;
    return state_.compare_exchange_strong(running, State::kCancelled, std::memory_order_relaxed) ||
           running == State::kCancelled;
  }
  void StopIfCancelled() const {
    if (state_.load(std::memory_order_relaxed) != State::kCancelled) return;
    throw Error(Finding::kCancelled, "the call was cancelled");
  }

 private:
  enum class State : unsigned char { kIdle, kRunning, kCommitted, kCancelled };
  std::atomic<State> state_{State::kIdle};
};

}  // namespace kv
