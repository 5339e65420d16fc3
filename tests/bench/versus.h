// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <limits>

// Compares two pieces of work in one process and reports the ratio of their times. Both run
// alternately (A B A B ...), so that other load on the machine affects them equally; the fastest
// repetition of each counts.
namespace kv::bench {

enum class Clock { kThreadCpu, kWall };

inline double Now(Clock clock) {
  timespec time{};
  ::clock_gettime(clock == Clock::kThreadCpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Selects the ratio: kSpeedup is peer time / own time (more is better), kOverhead the inverse.
enum class Figure { kSpeedup, kOverhead };

struct Match {
  uint64_t bytes = 0;  // bytes per repetition, from which rates are computed
  Figure figure = Figure::kSpeedup;
  double target = 0;  // target ratio, printed beside the measured one
  Clock clock = Clock::kThreadCpu;
  int repeats = 1;  // calls per repetition: about 100 us together
};

template <class Peer, class Own>
void Versus(benchmark::State& state, const Match& match, const Peer& peer, const Own& own) {
  const auto turn = [&](const auto& body) {
    const double begin = Now(match.clock);
    for (int i = 0; i < match.repeats; ++i) body();
    return (Now(match.clock) - begin) / match.repeats;
  };
  double peer_best = std::numeric_limits<double>::infinity(), own_best = peer_best;
  for (auto _ : state) {
    peer_best = std::min(peer_best, turn(peer));
    const double own_seconds = turn(own);
    own_best = std::min(own_best, own_seconds);
    state.SetIterationTime(own_seconds);
  }
  const double megabytes = static_cast<double>(match.bytes) / 1e6;
  state.counters["peer_MBps"] = megabytes / peer_best;
  state.counters["own_MBps"] = megabytes / own_best;
  state.counters["ratio"] =
      match.figure == Figure::kSpeedup ? peer_best / own_best : own_best / peer_best;
  if (match.target > 0) state.counters["target"] = match.target;
}

}  // namespace kv::bench
