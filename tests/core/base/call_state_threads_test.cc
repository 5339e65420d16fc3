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

// One thread makes calls, another requests. They meet at `turn`, so that each request falls where
// the test wants it: a call runs in even turns, none in odd ones.
TEST_CASE("A request stops the call that runs, and never the next one", "[threads]") {
  constexpr int kTurns = 2000;
  CallState state;
  std::atomic<int> turn{0}, asked{-1}, accepted{0};
  std::thread asks([&] {
    for (int i = 0; i < kTurns; ++i) {
      while (turn.load() < i + 1) std::this_thread::yield();
      accepted += state.Cancel() ? 1 : 0;
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
  CHECK(accepted == kTurns / 2);
}

TEST_CASE("A request is accepted until the result is decided, and ends the call", "[threads]") {
  CallState state;
  CHECK_FALSE(state.Cancel());
  REQUIRE(state.Begin());
  state.Commit();
  state.Commit();
  CHECK_FALSE(state.Cancel());
  CHECK_FALSE(IsCancelled(state));
  state.End();
  REQUIRE(state.Begin());
  CHECK(state.Cancel());
  CHECK(state.Cancel());
  CHECK_THROWS_AS(state.Commit(), Error);
  state.End();
  CHECK_FALSE(state.Cancel());
}

}  // namespace kv::call_state_test
