// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/engines/cacheblend/replay.h"
#include "tests/support/blend_case.h"

namespace kv::blend::blend_threads_test {
namespace {

TEST_CASE("a replay on many threads is the replay on one", "[blend]") {
  const auto made = test::MakeBlendCase({5, 60, 40, 6}, 21, DType::kF16);
  const CachePair caches(WholePrompt(made->full, {}), JoinChunks(made->chunks, BosRule::kNone, {}),
                         made->rope);
  Request request;
  request.ratio = 0.2;
  request.ratios = {0, 0.2, 1};
  request.suffix = 6;
  ThreadPool one(1), many(6);
  const Result a = Replay(caches, nullptr, request, one, nullptr);
  const Result b = Replay(caches, nullptr, request, many, nullptr);
  CHECK(a.selection.indices == b.selection.indices);
  CHECK(a.main().mean.k_sum == b.main().mean.k_sum);
  const Snapshot x = BlendedCache(caches, a, one), y = BlendedCache(caches, b, many);
  CHECK(Gather(x.layers[3].k, 0, caches.tokens(), Order::kTokenHeadDim) ==
        Gather(y.layers[3].k, 0, caches.tokens(), Order::kTokenHeadDim));
}

}  // namespace
}  // namespace kv::blend::blend_threads_test
