// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <thread>

#include "lib/engines/mnn/runtime/runtime.h"
#include "tests/support/lossless_case.h"

namespace kv::mnn::runtime::runtime_threads_test {
namespace {

EncodeTask TaskOf(uint64_t id) {
  EncodeTask task;
  task.id = id;
  task.tokens = 1;
  task.element_bytes = {2, 2};
  task.raw.tensors[0] = std::make_shared<const Bytes>(512, std::byte{7});
  task.verify = true;
  return task;
}

}  // namespace

TEST_CASE("workers give every result once, failures included", "[threads]") {
  test::FaultyCodec codec;
  codec.before_encode = [](uint64_t call) {
    if (call % 4 == 0) throw std::runtime_error("no");
    if (call % 4 == 1) throw 7;
  };
  EncodeWorkers workers(codec, 3, 1000);
  std::vector<bool> seen(200);
  uint64_t failed = 0;
  const auto take = [&](std::vector<EncodeResult> results) {
    for (const EncodeResult& result : results) {
      REQUIRE_FALSE(seen[result.task.id]);
      seen[result.task.id] = true;
      failed += result.failed;
      CHECK(result.failed != result.verified[0]);
    }
  };
  for (uint64_t id = 0; id < 200; ++id) {
    EncodeTask task = TaskOf(id);
    REQUIRE(workers.TrySubmit(task));
    take(workers.TakeReady());
  }
  int64_t waited = 0;
  take(workers.WaitAll(waited));
  CHECK(std::count(seen.begin(), seen.end(), true) == 200);
  CHECK(failed == 100);
  CHECK(workers.untaken() == 0);
}

TEST_CASE("the queue is bounded and its destruction does not wait for it", "[threads]") {
  test::FaultyCodec codec;
  std::latch started(1), release(1);
  std::atomic<uint64_t> encoded = 0;
  codec.before_encode = [&](uint64_t call) {
    if (call == 0) {
      started.count_down();
      release.wait();
    }
    ++encoded;
  };
  {
    EncodeWorkers workers(codec, 1, 3);
    for (uint64_t id = 0; id < 3; ++id) {
      EncodeTask task = TaskOf(id);
      REQUIRE(workers.TrySubmit(task));
      if (id == 0) started.wait();
    }
    EncodeTask rest = TaskOf(3);
    CHECK_FALSE(workers.TrySubmit(rest));
    CHECK(rest.raw.tensors[0] != nullptr);
    CHECK(workers.untaken() == 3);
    release.count_down();
  }
  CHECK(encoded <= 3);
}

TEST_CASE("replays with real threads lose nothing", "[threads]") {
  const auto made = test::MakeAttentionCase({.layers = 3, .tokens = 180}, 11);
  for (const Engine engine : {Engine::kMnn, Engine::kDesign}) {
    for (const Mode mode : {Mode::kFull, Mode::kStore}) {
      ReplayRequest request = test::SmallRequest(engine, mode);
      request.lossless.async_threads = 3;
      request.h2o_enable = true;
      request.h2o.layer_start = 1;
      request.h2o.block_tokens = 8;
      request.h2o.sink_tokens = 4;
      request.h2o.recent_tokens = 24;
      request.h2o.trigger_min_tokens = 90;
      test::FaultyCodec codec;
      codec.before_encode = [](uint64_t call) {
        if (call % 5 == 0) throw std::runtime_error("no");
      };
      request.codec = &codec;
      ThreadPool pool(2);
      const ReplayResult result = Replay(made->snapshot, &made->trace, request, pool);
      CHECK(result.content.equal());
      CHECK(result.measured.failures > 0);
      CHECK(result.measured.verified_raw_bytes > 0);
    }
  }
}

// Threads affect when a result is ready, but never how many bytes are held, so all runs of the same
// code must be equal.
TEST_CASE("resident bytes do not depend on when a worker was done", "[threads]") {
  const auto made =
      test::MakeAttentionCase({.layers = 6, .query_heads = 32, .dim = 64, .tokens = 140}, 12);
  for (const Engine engine : {Engine::kMnn, Engine::kDesign}) {
    for (const Mode mode : {Mode::kFull, Mode::kStore}) {
      for (const int64_t queue : {2, 256}) {
        INFO(Name(engine) << " " << Name(mode) << " queue " << queue);
        ReplayRequest request = test::SmallRequest(engine, mode);
        request.lossless.async_threads = 3;
        request.lossless.max_queue = queue;
        request.lossless.decode_cache_blocks = 3;
        const ReplayResult steady = test::RunCase(*made, request);
        for (const int delay : {0, 1, 2}) {
          test::FaultyCodec codec;
          codec.before_encode = [delay](uint64_t call) {
            const bool slow = delay == 1 ? call % 2 == 0 : delay == 2;
            if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
          };
          request.codec = &codec;
          const ReplayResult result = test::RunCase(*made, request);
          CHECK(result.peak_bytes == steady.peak_bytes);
          // Even if the worker was fast, its result had been counted as pending.
          CHECK(result.metrics.async_queue_peak > 0);
          CHECK(result.metrics.async_queue_peak == steady.metrics.async_queue_peak);
          CHECK(result.metrics.queue_depth_peak == steady.metrics.queue_depth_peak);
          CHECK(result.metrics.queue_depth_peak_least == steady.metrics.queue_depth_peak_least);
          CHECK(result.metrics.queue_depth_peak_least <= steady.metrics.queue_depth_peak);
          CHECK(result.measured.verified_blob_bytes == steady.measured.verified_blob_bytes);
          CHECK(result.measured.backpressure == steady.measured.backpressure);
          REQUIRE(result.steps.size() == steady.steps.size());
          for (size_t i = 0; i < result.steps.size(); ++i) {
            REQUIRE(result.steps[i].total() == steady.steps[i].total());
          }
        }
      }
    }
  }
}

}  // namespace kv::mnn::runtime::runtime_threads_test
