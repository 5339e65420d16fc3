// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>

#include "lib/core/base/error.h"
#include "lib/core/base/parallel.h"

namespace kv::parallel_threads_test {

TEST_CASE("every index runs once, whatever the number of threads", "[threads]") {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const uint64_t count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> seen(count);
      pool.ParallelFor(count, [&](uint64_t i) { ++seen[i]; });
      for (const auto& times : seen) REQUIRE(times == 1);
    }
  }
}

TEST_CASE("a scope stops the pools of its thread between two indices", "[threads]") {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::atomic<bool> stopped{false};
    std::atomic<int> seen{0};
    const auto body = [&](uint64_t) {
      if (++seen == 10) stopped = true;
    };
    {
      const StopScope scope(stopped);
      try {
        pool.ParallelFor(100000, body);
        FAIL("must throw");
      } catch (const Error& error) {
        REQUIRE(error.finding() == Finding::kCancelled);
      }
      REQUIRE(seen < 10 + threads);
    }
    // A cancelled scope has ended, so calls run again.
    seen = 0;
    pool.ParallelFor(100, body);
    REQUIRE(seen == 100);
  }
}

TEST_CASE("the failure of the lowest index is the one reported", "[threads]") {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    try {
      pool.ParallelFor(100, [](uint64_t i) {
        if (i == 3 || i == 2) throw std::runtime_error(std::to_string(i));
      });
      FAIL("must throw");
    } catch (const std::runtime_error& error) {
      // Item 3 may fail before item 2 has started, which then never runs; any other item succeeds.
      CHECK((std::string(error.what()) == "2" || std::string(error.what()) == "3"));
    }
  }
}

TEST_CASE("nested loops finish on a small pool", "[threads]") {
  ThreadPool pool(2);
  std::atomic<int> total{0};
  pool.ParallelFor(8, [&](uint64_t) { pool.ParallelFor(8, [&](uint64_t) { ++total; }); });
  CHECK(total == 64);
}

TEST_CASE("a pipeline emits in order and never holds more than its window", "[threads]") {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    int made = 0, emitted = 0, most = 0;
    pool.RunOrdered<int, int>(
        4,
        [&]() -> std::optional<int> {
          if (made == 200) return std::nullopt;
          most = std::max(most, made - emitted + 1);
          return made++;
        },
        [](int& task) { return task * task; },
        [&](int& result) {
          REQUIRE(result == emitted * emitted);
          ++emitted;
        });
    CHECK(emitted == 200);
    CHECK(most <= 4);
  }
}

TEST_CASE("a pipeline stops at the first failure in order", "[threads]") {
  ThreadPool pool(3);
  int made = 0, emitted = 0;
  const auto run = [&] {
    pool.RunOrdered<int, int>(
        8, [&]() -> std::optional<int> { return made++; },
        [](int& task) {
          if (task == 5) throw std::runtime_error("five");
          return task;
        },
        [&](int&) { ++emitted; });
  };
  REQUIRE_THROWS_WITH(run(), "five");
  CHECK(emitted == 5);
}

}  // namespace kv::parallel_threads_test
