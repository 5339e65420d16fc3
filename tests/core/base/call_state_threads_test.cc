// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <thread>

#include "lib/core/base/progress.h"

namespace kv::call_state_test {

bool IsCancelled(const CallState& state) {
  try {
    state.StopIfCancelled();
    return false;
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kCancelled);
    return true;
  }
}

// The calls of one thread and the requests of another meet at `turn`, so that each request falls
// where the test wants it: in even turns a call runs, in odd ones none does.
TEST_CASE("A request stops the call that runs, and never the next one", "[threads]") {
  constexpr int kTurns = 2000;
  CallState state;
  std::atomic<int> turn{0}, asked{-1};
  std::thread asks([&] {
    for (int i = 0; i < kTurns; ++i) {
      while (turn.load() < i + 1) std::this_thread::yield();
      state.Cancel();
      asked = i;
    }
  });
  int wrong = 0;
  for (int i = 0; i < kTurns; ++i) {
    const bool runs = i % 2 == 0;
    if (runs) {
      wrong += !state.Begin();
      wrong += IsCancelled(state);
      wrong += state.Begin();  // one call at a time
    }
    turn = i + 1;
    while (asked.load() < i) std::this_thread::yield();
    wrong += IsCancelled(state) != runs;
    if (runs) state.End();
  }
  asks.join();
  CHECK(wrong == 0);
}

}  // namespace kv::call_state_test
