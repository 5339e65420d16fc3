// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <stop_token>

#include "tests/support/kv_source.h"
#include "tests/support/lossless_case.h"

namespace kv::mnn::runtime::design_runtime_test {
namespace {

using test::CountEvents;
using test::MakeAttentionCase;
using test::RunCase;
using test::SmallRequest;

const test::CaseShape kShape{
    .layers = 3, .query_heads = 4, .kv_heads = 2, .dim = 16, .tokens = 200};

eviction::BlockConfig EvictingH2o() {
  eviction::BlockConfig h2o;
  h2o.layer_start = 0;
  h2o.block_tokens = 8;
  h2o.sink_tokens = 4;
  h2o.recent_tokens = 24;
  h2o.trigger_min_tokens = 90;
  h2o.update_interval = 5;
  return h2o;
}

}  // namespace

TEST_CASE("the design compresses the whole cold zone once and gives the memory back",
          "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 1);
  ReplayRequest request = SmallRequest(Engine::kDesign, Mode::kStore);
  request.cache_bytes = 0;
  const ReplayResult result = RunCase(*made, request);
  CHECK(result.content.equal());
  const Resident& first = result.steps.front();
  const Resident& last = result.steps.back();
  CHECK(first.blobs == 0);
  CHECK(last.blobs > 0);
  CHECK(last.held == last.full);
  request.lossless.enable = false;
  CHECK(last.total() < RunCase(*made, request).steps.back().total());
  // Cold ranges do not fill a block yet: they are less than a block per layer.
  const uint64_t encoded = result.measured.encoded_tokens;
  for (const LayerResult& layer : result.layers) {
    CHECK(layer.measured.encoded_tokens <= layer.cold_tokens);
    CHECK(layer.cold_tokens - layer.measured.encoded_tokens < 32);
  }
  CHECK(encoded > 0);
  CHECK(result.measured.verified_raw_bytes == result.measured.encoded_raw_bytes);
  CHECK(result.measured.decode_calls > 0);
  CHECK(result.measured.cache_copies == 0);
}

TEST_CASE("a cache of decoded ranges trades memory for decoding", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 2);
  ReplayRequest request = SmallRequest(Engine::kDesign, Mode::kStore);
  request.cache_bytes = 16 << 10;
  const ReplayResult small = RunCase(*made, request);
  CHECK(small.cache_bytes == request.cache_bytes);
  CHECK(small.measured.cache_copies > 0);
  for (const Resident& step : small.steps) CHECK(step.caches <= small.cache_bytes);
  request.cache_bytes = 64 << 20;
  const ReplayResult large = RunCase(*made, request);
  CHECK(large.content.equal());
  CHECK(large.measured.decode_calls < small.measured.decode_calls);
  CHECK(large.measured.cache_copies > 0);
  CHECK(large.measured.seeded_hits == 0);
}

TEST_CASE("what is not proven stays raw", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 3);
  ReplayRequest request = SmallRequest(Engine::kDesign, Mode::kStore);
  test::FaultyCodec codec;
  codec.after_encode = [](uint64_t call, Bytes& blob) {
    if (call % 3 == 0) test::Damage(blob);
  };
  request.codec = &codec;
  for (const int64_t threads : {0, 2}) {
    request.lossless.async_threads = threads;
    const ReplayResult result = RunCase(*made, request);
    CHECK(result.content.equal());
    CHECK(result.measured.verify_failures > 0);
    CHECK(result.measured.verified_raw_bytes > 0);
    CHECK(result.measured.verified_raw_bytes < result.measured.encoded_raw_bytes);
  }

  test::FaultyCodec throws;
  throws.before_encode = [](uint64_t) { throw std::runtime_error("out of luck"); };
  request.codec = &throws;
  const ReplayResult result = RunCase(*made, request);
  CHECK(result.content.equal());
  CHECK(result.measured.failures == result.measured.encode_calls);
  CHECK(result.steps.back().blobs == 0);
}

TEST_CASE("a decoder that fails once is asked again; one that always fails stops the replay",
          "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 4);
  ReplayRequest request = SmallRequest(Engine::kDesign, Mode::kStore);
  request.lossless.async_threads = 0;
  request.cache_bytes = 0;
  test::FaultyCodec once;
  once.before_decode = [](uint64_t call) {
    if (call == 40) throw std::runtime_error("a passing fault");
  };
  request.codec = &once;
  const ReplayResult result = RunCase(*made, request);
  CHECK(result.content.equal());
  CHECK(result.measured.failures + result.measured.verify_failures == 1);

  test::FaultyCodec rotten;
  rotten.before_decode = [](uint64_t call) {
    if (call >= 40) throw std::runtime_error("bit rot");
  };
  request.codec = &rotten;
  CHECK_THROWS_WITH(RunCase(*made, request), Catch::Contains("cannot be restored from its blob"));
}

TEST_CASE("a full queue delays and loses nothing", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 5);
  ReplayRequest request = SmallRequest(Engine::kDesign, Mode::kStore);
  request.lossless.max_queue = 1;
  const ReplayResult result = RunCase(*made, request);
  CHECK(result.measured.backpressure > 0);
  CHECK(result.content.equal());
  for (const LayerResult& layer : result.layers) {
    CHECK(layer.cold_tokens - layer.measured.encoded_tokens < 32);
  }
}

TEST_CASE("evictions cut blocks, which are encoded anew", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 6);
  ReplayRequest request = SmallRequest(Engine::kDesign, Mode::kStore);
  request.h2o_enable = true;
  request.h2o = EvictingH2o();
  const ReplayResult design = RunCase(*made, request);
  CHECK(design.content.equal());
  CHECK(CountEvents(design, EventKind::kCompact) > 0);
  // Without loss H2O sees the same scores, so it decides as for the untouched cache.
  request.lossless.enable = false;
  const ReplayResult plain = RunCase(*made, request);
  CHECK(design.h2o_metrics.lossy_ratio == plain.h2o_metrics.lossy_ratio);
  CHECK(design.h2o_metrics.total_evict_tokens == plain.h2o_metrics.total_evict_tokens);
  for (size_t layer = 0; layer < 3; ++layer) {
    CHECK(design.layers[layer].length == plain.layers[layer].length);
  }
  CHECK(design.steps.back().held == plain.steps.back().held);
}

TEST_CASE("a stop in the middle leaves whole caches", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 7);
  for (const Engine engine : {Engine::kMnn, Engine::kDesign}) {
    std::stop_source source;
    test::FaultyCodec codec;
    codec.before_encode = [&](uint64_t call) {
      if (call == 5) source.request_stop();
    };
    ReplayRequest request = SmallRequest(engine, Mode::kStore);
    request.codec = &codec;
    request.stop = source.get_token();
    const ReplayResult result = RunCase(*made, request);
    CHECK(result.stopped);
    CHECK(result.end < 200);
    CHECK(result.content.equal());
    CHECK(result.content.ranges > 0);
  }
}

TEST_CASE("probe and full of the design prove the blobs and keep the bytes", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 8);
  for (const Mode mode : {Mode::kProbe, Mode::kFull}) {
    const ReplayResult result = RunCase(*made, SmallRequest(Engine::kDesign, mode));
    CHECK(result.content.equal());
    CHECK(result.measured.verified_raw_bytes > 0);
    CHECK(result.steps.back().blobs == 0);
    CHECK(result.steps.back().raw >= result.steps.back().held);
  }
}

TEST_CASE("layers of other types and shapes, and without V, are replayed alike", "[lossless]") {
  test::KvSourceBuilder builder(3);
  test::KvSourceBuilder::Shape wide{.dtype = DType::kF32, .tokens = 160, .pieces = 3};
  test::KvSourceBuilder::Shape half{.order = Order::kHeadDimToken, .tokens = 160, .head_dim = 16};
  test::KvSourceBuilder::Shape brain{.dtype = DType::kBF16, .tokens = 160, .heads = 1};
  builder.Layer(wide, &half);
  builder.Layer(brain, nullptr);
  builder.Layer(half, &brain);
  const Snapshot snapshot = builder.Build();
  ThreadPool pool(1);
  for (const Engine engine : {Engine::kMnn, Engine::kDesign}) {
    for (const Mode mode : {Mode::kProbe, Mode::kFull, Mode::kStore}) {
      ReplayRequest request = SmallRequest(engine, mode);
      request.h2o_enable = true;
      request.h2o = EvictingH2o();
      request.lossless.decode_cache_blocks = 0;
      const ReplayResult result = Replay(snapshot, nullptr, request, pool);
      CHECK(result.content.equal());
      CHECK(result.measured.verified_raw_bytes > 0);
      CHECK(result.measured.failures == 0);
      CHECK(result.layers[1].measured.verified_raw_of[1] == 0);
      CHECK(CountEvents(result, EventKind::kCompact) > 0);
    }
  }
}

TEST_CASE("a replay needs a prompt that leaves something to decode", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 9);
  ThreadPool pool(1);
  ReplayRequest request = SmallRequest(Engine::kMnn, Mode::kStore);
  request.prompt_tokens.reset();
  CHECK_THROWS_WITH(Replay(made->snapshot, nullptr, request, pool), Catch::Contains("prompt"));
  request.prompt_tokens = 200;
  CHECK_THROWS_WITH(Replay(made->snapshot, nullptr, request, pool), Catch::Contains("200"));
  request.prompt_tokens = 199;
  const ReplayResult result = Replay(made->snapshot, nullptr, request, pool);
  CHECK(result.end == 200);
  CHECK_FALSE(result.speed.has_value());
  CHECK(result.content.equal());
}

TEST_CASE("a probe of the design takes one layer of each scope", "[lossless]") {
  const auto made = MakeAttentionCase(
      {.layers = 5, .query_heads = 4, .kv_heads = 2, .dim = 16, .tokens = 200}, 10);
  const auto encoded = [&](Scope scope, Mode mode) {
    ReplayRequest request = SmallRequest(Engine::kDesign, mode);
    request.lossless.scope = scope;
    request.lossless.front_n = 2;
    request.h2o.layer_start = 2;
    std::vector<uint32_t> layers;
    for (const LayerResult& layer : RunCase(*made, request).layers) {
      if (layer.measured.encode_calls > 0) layers.push_back(layer.layer);
    }
    return layers;
  };
  using Layers = std::vector<uint32_t>;
  CHECK(encoded(Scope::kFrontN, Mode::kProbe) == Layers{0});
  CHECK(encoded(Scope::kH2oKept, Mode::kProbe) == Layers{2});
  CHECK(encoded(Scope::kFrontNAndH2oKept, Mode::kProbe) == Layers{0, 2});
  CHECK(encoded(Scope::kFrontNAndH2oKept, Mode::kFull) == Layers{0, 1, 2, 3, 4});
}

}  // namespace kv::mnn::runtime::design_runtime_test
