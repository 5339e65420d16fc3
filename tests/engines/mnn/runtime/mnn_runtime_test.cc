// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/engines/mnn/h2o/report.h"
#include "tests/support/lossless_case.h"

namespace kv::mnn::runtime::mnn_runtime_test {
namespace {

using test::CountEvents;
using test::MakeAttentionCase;
using test::RunCase;
using test::SmallRequest;

const test::CaseShape kShape{
    .layers = 3, .query_heads = 4, .kv_heads = 2, .dim = 16, .tokens = 200};

}  // namespace

TEST_CASE("store restores from the copies it seeded and never decodes", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 1);
  const ReplayResult result = RunCase(*made, SmallRequest(Engine::kMnn, Mode::kStore));
  CHECK(result.content.equal());
  CHECK(result.measured.cache_copies > 0);
  CHECK(result.measured.seeded_hits == result.measured.cache_copies);
  CHECK(result.measured.decode_calls == 0);
  CHECK(result.metrics.decode_cache_hit == result.measured.cache_copies);
  CHECK(result.metrics.decode_cache_miss == 0);
  CHECK(result.metrics.sums.decompressed_bytes > 0);
  CHECK(CountEvents(result, EventKind::kDrop) == result.measured.cache_copies);
  // Nothing is freed: memory use is higher than without the feature.
  for (const Resident& step : result.steps) CHECK(step.total() >= step.raw);
  CHECK(result.peak_bytes > result.steps.back().raw);
  CHECK(result.whole_model_ratio() < 1);
  // The replay decodes everything itself and thereby confirms the ratio.
  CHECK(result.measured.verify_failures == 0);
  CHECK(result.measured.verified_raw_bytes == result.measured.encoded_raw_bytes);
  CHECK(result.measured.verified_ratio() > 1);
  CHECK(result.metrics.ratio == Approx(result.measured.verified_ratio()));
}

TEST_CASE("store without its cache really decodes", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 2);
  ReplayRequest request = SmallRequest(Engine::kMnn, Mode::kStore);
  request.lossless.decode_cache_blocks = 0;
  const ReplayResult result = RunCase(*made, request);
  CHECK(result.content.equal());
  CHECK(result.measured.cache_copies == 0);
  CHECK(result.measured.decode_calls > 0);
  CHECK(result.metrics.decode_cache_miss == result.measured.decode_calls);
  CHECK(result.metrics.sums.fallback_count == 0);
  for (const Resident& step : result.steps) CHECK(step.caches == 0);
}

TEST_CASE("a broken blob goes unnoticed behind the cache and loses data without it", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 3);
  test::FaultyCodec codec;
  codec.after_encode = [](uint64_t, Bytes& blob) { test::Damage(blob); };
  ReplayRequest request = SmallRequest(Engine::kMnn, Mode::kStore);
  request.codec = &codec;
  const ReplayResult cached = RunCase(*made, request);
  CHECK(cached.content.equal());
  CHECK(cached.metrics.sums.fallback_count == 0);
  CHECK(cached.measured.verify_failures == cached.measured.encode_calls);
  CHECK(cached.measured.verified_raw_bytes == 0);

  request.lossless.decode_cache_blocks = 0;
  const ReplayResult bare = RunCase(*made, request);
  CHECK_FALSE(bare.content.equal());
  REQUIRE(bare.content.first.has_value());
  CHECK(bare.content.first->position >= 4);
  CHECK(bare.metrics.sums.fallback_count > 0);
  // The zeros persist, and the check at the end of the run finds them again.
  CHECK(bare.layers.front().content.mismatches > 1);
}

TEST_CASE("full mode decodes, compares and throws away", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 4);
  ReplayRequest request = SmallRequest(Engine::kMnn, Mode::kFull);
  const ReplayResult result = RunCase(*made, request);
  CHECK(result.content.equal());
  CHECK(CountEvents(result, EventKind::kDrop) == 0);
  CHECK(CountEvents(result, EventKind::kDecode) > 0);
  CHECK(result.measured.decode_calls > 0);
  CHECK(result.metrics.sums.decompressed_bytes == result.metrics.sums.raw_bytes);

  test::FaultyCodec codec;
  codec.after_encode = [](uint64_t, Bytes& blob) { test::Damage(blob); };
  request.codec = &codec;
  const ReplayResult broken = RunCase(*made, request);
  CHECK(broken.content.equal());
  CHECK(broken.metrics.sums.fallback_count > 0);
  CHECK(broken.metrics.sums.decompressed_bytes == 0);
}

TEST_CASE("an encoder that throws counts as a fallback of ratio 1", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 5);
  test::FaultyCodec codec;
  codec.before_encode = [](uint64_t) { throw std::runtime_error("out of luck"); };
  for (const Mode mode : {Mode::kProbe, Mode::kFull, Mode::kStore}) {
    ReplayRequest request = SmallRequest(Engine::kMnn, mode);
    request.codec = &codec;
    const ReplayResult result = RunCase(*made, request);
    CHECK(result.content.equal());
    CHECK(result.measured.encode_calls > 0);
    CHECK(result.metrics.sums.fallback_count == result.measured.encode_calls);
    CHECK(result.metrics.ratio == 1.0);
    CHECK(result.measured.encoded_blob_bytes == 0);
  }
}

TEST_CASE("a full queue skips tokens for good and says so", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 6);
  ReplayRequest request = SmallRequest(Engine::kMnn, Mode::kStore);
  request.lossless.max_queue = 1;
  const ReplayResult result = RunCase(*made, request);
  CHECK(result.content.equal());
  CHECK(result.metrics.sums.backpressure_skip_count > 0);
  CHECK(result.metrics.sums.backpressure_skip_count ==
        CountEvents(result, EventKind::kBackpressure));
  CHECK(result.metrics.async_queue_peak == 1);
  CHECK(result.metrics.sums.update_count ==
        result.metrics.sums.backpressure_skip_count + result.measured.encode_calls);
}

TEST_CASE("the inactive path is the baseline: nothing is touched", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 7);
  ReplayRequest request = SmallRequest(Engine::kMnn, Mode::kStore);
  request.lossless.runtime_enable = false;
  const ReplayResult result = RunCase(*made, request);
  CHECK(result.events.empty());
  CHECK(result.content.equal());
  CHECK(result.content.ranges == 6);
  CHECK(result.metrics.ratio == 1.0);
  CHECK(result.steps.back().total() == result.steps.back().raw);
  REQUIRE(result.speed.has_value());
  CHECK(result.speed->tokens == 104);
}

TEST_CASE("H2O under the lossless path decides as it does alone", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 8);
  ReplayRequest request = SmallRequest(Engine::kMnn, Mode::kStore);
  request.h2o_enable = true;
  request.h2o = {};
  request.h2o.layer_start = 1;
  request.h2o.block_tokens = 8;
  request.h2o.sink_tokens = 4;
  request.h2o.recent_tokens = 24;
  request.h2o.trigger_min_tokens = 64;
  request.h2o.update_interval = 5;
  // The plan of a layer outside H2O's range is not cleared.
  request.lossless.scope = Scope::kFrontN;
  request.lossless.front_n = 1;
  const ReplayResult result = RunCase(*made, request);
  ThreadPool pool(1);
  eviction::ReplayRequest alone;
  alone.engine = &mnn::h2o::kMnn;
  alone.config = request.h2o;
  alone.prompt_tokens = 96;
  alone.measure_quality = false;
  const eviction::ReplayResult expected = Replay(made->snapshot, made->trace, alone, pool);
  const mnn::h2o::MnnReplay& mnn = *mnn::h2o::FindMnnReplay(expected.runs.front());
  CHECK(expected.runs.front().evictions() > 0);
  CHECK(CountEvents(result, EventKind::kEvict) == expected.runs.front().evictions());
  CHECK(result.h2o_metrics.lossy_ratio == mnn.metrics.lossy_ratio);
  CHECK(result.h2o_metrics.total_evict_tokens == mnn.metrics.total_evict_tokens);
  CHECK(result.content.equal());
  for (size_t layer = 0; layer < 3; ++layer) {
    // The last plan may still wait for a call that never comes.
    CHECK(result.layers[layer].end.raw ==
          mnn.capacities[layer] * made->snapshot.layers[layer].k.row_bytes() * 2);
  }
}

TEST_CASE("the shrink rule throws away blocks and H2O's plan", "[lossless]") {
  const auto made = MakeAttentionCase(kShape, 9);
  ReplayRequest request = SmallRequest(Engine::kMnn, Mode::kFull);
  request.h2o_enable = true;
  request.h2o.layer_start = 0;
  request.h2o.block_tokens = 8;
  request.h2o.sink_tokens = 4;
  request.h2o.recent_tokens = 24;
  request.h2o.trigger_min_tokens = 90;
  // In layer calls: the lossless path runs before the first update.
  request.h2o.update_interval = 60;
  request.lossless.scope = Scope::kH2oKept;
  request.lossless.kept_sample_layers = 0;
  request.lossless.kept_sample_token_interval = 1;
  request.lossless.block_tokens = 16;
  const ReplayResult result = RunCase(*made, request);
  CHECK(CountEvents(result, EventKind::kShrink) > 0);
  CHECK(result.h2o_plans_cleared > 0);
  CHECK(CountEvents(result, EventKind::kCompact) + result.h2o_plans_cleared <=
        CountEvents(result, EventKind::kEvict));
  CHECK(result.content.equal());
}

}  // namespace kv::mnn::runtime::mnn_runtime_test
