// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/h2o/mnn_engine.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace kv::mnn::h2o::mnn_engine_test {
namespace {

eviction::BlockConfig Gate() {
  eviction::BlockConfig config;
  config.block_tokens = 32;
  config.sink_tokens = 16;
  config.recent_tokens = 96;
  config.target_lossy_ratio = 3.5f;
  config.trigger_min_tokens = 384;
  return config;
}

// Configures a layer that may evict at every token.
eviction::BlockConfig Eager() {
  eviction::BlockConfig config = Gate();
  config.layer_start = 0;
  config.update_interval = 1;
  return config;
}

std::vector<float> Even(const MnnEngine& engine, const CallStart& start) {
  return std::vector<float>(engine.blocks(start.length), 1.0f);
}

struct Triggered {
  uint64_t token;
  uint32_t layer;
  bool operator==(const Triggered&) const = default;
};

std::vector<Triggered> Decode(MnnEngine& engine, uint64_t tokens) {
  std::vector<Triggered> triggers;
  for (uint64_t token = 1; token <= tokens; ++token) {
    for (uint32_t layer = 0; layer < engine.geometry().layers; ++layer) {
      const CallStart start = engine.Begin();
      if (engine.Finish(Even(engine, start)).triggered) triggers.push_back({token, layer});
    }
  }
  return triggers;
}

}  // namespace

TEST_CASE("parameters carry the engine's names, defaults and clamps", "[h2o]") {
  const eviction::BlockConfig defaults;
  CHECK(defaults.target_lossy_ratio == 3.0f);
  CHECK(defaults.block_tokens == 64);
  eviction::BlockConfig config;
  CHECK(SetParameter("h2o_block_tokens", 0, config));
  CHECK(SetParameter("h2o_ema_alpha", 1.5, config));
  CHECK(SetParameter("h2o_target_mode", 7, config));
  CHECK(SetParameter("h2o_target_lossy_ratio", NAN, config));
  CHECK_FALSE(SetParameter("h2o_block_token", 1, config));
  const eviction::BlockConfig sane = eviction::Sanitised(config);
  CHECK(sane.block_tokens == 1);
  CHECK(sane.ema_alpha == 1.0f);
  CHECK(sane.target_mode == eviction::TargetMode::kAdaptive);
  CHECK(sane.target_lossy_ratio == 1.0f);
  int count = 0;
  ForEachParameter(config, [&](std::string_view name, double value) {
    eviction::BlockConfig copy;
    CHECK(SetParameter(name, value, copy));
    ++count;
  });
  CHECK(count == 11);
}

TEST_CASE("the clock counts layer calls: two layers per token at interval 16", "[h2o]") {
  MnnEngine engine(Gate(), {32, 32, 32, 128, 2}, MnnRevision::kFinal, 512);
  // Layers 15 and 31 trigger at the first token, then 16 (15 was compacted and is too short), then
  // 2 and 18.
  const std::vector<Triggered> first = {{1, 15}, {1, 31}, {2, 16}, {3, 2}, {3, 18}};
  std::vector<Triggered> triggers = Decode(engine, 3);
  CHECK(triggers == first);
}

TEST_CASE("the engine's own ratio says nothing of the whole model", "[h2o]") {
  for (const auto& [prompt, last_ratio, true_ratio] :
       {std::tuple{512u, 3.000, 2.065}, std::tuple{1024u, 3.421, 2.436}}) {
    MnnEngine engine(Gate(), {32, 32, 32, 128, 2}, MnnRevision::kFinal, prompt);
    Decode(engine, 128);
    uint64_t kept = 0;
    for (uint32_t layer = 0; layer < 32; ++layer) kept += engine.length(layer);
    CHECK(engine.metrics().lossy_ratio == Approx(last_ratio).margin(2e-3));
    CHECK((prompt + 128) * 32.0 / static_cast<double>(kept) == Approx(true_ratio).margin(1e-3));
  }
}

TEST_CASE("a plan takes effect at the layer's next call, before the new token", "[h2o]") {
  MnnEngine engine(Eager(), {1, 4, 4, 64, 2}, MnnRevision::kFinal, 511);
  CallStart start = engine.Begin();
  CHECK(start.length == 512);
  const CallEnd end = engine.Finish(Even(engine, start));
  REQUIRE(end.triggered);
  CHECK(engine.length(0) == 512);  // still whole
  CHECK(engine.pending_remove(0) == 512);
  CHECK(end.final_keep_tokens == end.decision.kept);
  start = engine.Begin();
  CHECK(start.plan_applied);
  CHECK(start.length_compacted == end.decision.kept);
  CHECK(start.length == end.decision.kept + 1);
  CHECK(engine.capacity(0) == 575);  // the buffer never shrinks
}

TEST_CASE("a plan that no longer fits is dropped, scores stay remapped", "[h2o]") {
  MnnEngine engine(Eager(), {1, 4, 4, 64, 2}, MnnRevision::kFinal, 511);
  CallStart start = engine.Begin();
  const CallEnd end = engine.Finish(Even(engine, start));
  REQUIRE(end.decision.evicted > 0);
  engine.Truncate(0, 500);
  start = engine.Begin();
  CHECK(start.plan_dropped);
  CHECK_FALSE(start.plan_applied);
  CHECK(start.length == 501);
  CHECK(engine.scores(0).size() == end.decision.kept_blocks.size());
}

TEST_CASE("R6 shares one score vector among all layers", "[h2o]") {
  eviction::BlockConfig config = Eager();
  config.update_interval = 1000;
  MnnEngine shared(config, {2, 1, 1, 64, 2}, MnnRevision::kR6, 63);
  MnnEngine own(config, {2, 1, 1, 64, 2}, MnnRevision::kFinal, 63);
  for (MnnEngine* engine : {&shared, &own}) {
    engine->Begin();
    engine->Finish(std::vector<float>{1.0f, 0.0f});
    engine->Begin();
    engine->Finish(std::vector<float>{0.0f, 1.0f});
  }
  CHECK(own.scores(0)[1] == 0.0f);
  CHECK(own.scores(1)[0] == 0.0f);
  // 0.1 from the call of layer 0, decayed by that of layer 1.
  CHECK(shared.scores(0)[0] == Approx(0.09f));
  CHECK(shared.scores(1)[1] == Approx(0.1f));
}

TEST_CASE("R6 evicts down to the floor where the final branch keeps all", "[h2o]") {
  eviction::BlockConfig config = Eager();
  config.trigger_min_tokens = 1;
  config.sink_tokens = 32;
  config.recent_tokens = 32;
  config.target_lossy_ratio = 4.0f;
  MnnEngine r6(config, {1, 1, 1, 64, 2}, MnnRevision::kR6, 255);
  MnnEngine last(config, {1, 1, 1, 64, 2}, MnnRevision::kFinal, 255);
  r6.Begin();
  last.Begin();
  CHECK(r6.Finish(std::vector<float>(8, 1.0f)).decision.plan == KeepPlan{{0, 32}, {224, 32}});
  CHECK(r6.metrics().keep_ratio == 0.25f);
  CHECK(last.Finish(std::vector<float>(8, 1.0f)).decision.plan.empty());
  CHECK(last.metrics().keep_ratio == 1.0f);
}

TEST_CASE("without a trigger the lossless budget follows the last ratio of any layer", "[h2o]") {
  eviction::BlockConfig config = Gate();
  config.layer_start = 1;
  MnnEngine engine(config, {17, 1, 1, 64, 2}, MnnRevision::kFinal, 511);
  std::vector<CallEnd> ends;
  for (uint32_t layer = 0; layer < 17; ++layer) {
    const CallStart start = engine.Begin();
    ends.push_back(engine.Finish(Even(engine, start)));
  }
  REQUIRE(ends[15].triggered);
  CHECK(ends[0].final_keep_tokens == 512);  // out of range
  CHECK(ends[16].final_keep_tokens ==
        static_cast<uint64_t>(std::lround(engine.metrics().keep_ratio * 512)));
}

TEST_CASE("the published design keeps only sink and recent blocks, each layer by its own steps",
          "[h2o]") {
  eviction::BlockConfig published;  // 64, 32, 256
  published.target_lossy_ratio = 3.5f;
  MnnEngine text(published, {32, 4, 4, 64, 2}, MnnRevision::kDesign, 1000);
  std::vector<Triggered> expected;
  for (uint32_t layer = 2; layer < 32; ++layer) expected.push_back({16, layer});
  // Sixteen decode steps, then every layer of the range at once. Of 1,016 tokens one sink block and
  // the blocks of the last 256 tokens stay, which is more than the target of 291.
  CHECK(Decode(text, 16) == expected);
  for (uint32_t layer = 2; layer < 32; ++layer) {
    CHECK(text.length(layer) == 1016);
    CHECK(KeptTokens(text.pending(layer)) == 376);
  }
  // The ratio is one of tokens (seen / kept), not of bytes.
  CHECK(text.metrics().lossy_ratio == 1016.0f / 376.0f);
  Decode(text, 1);
  CHECK(text.length(1) == 1017);
  CHECK(text.length(2) == 377);
  // The final revision keeps everything here; revision R6, which counts other calls, evicts.
  MnnEngine code(published, {32, 4, 4, 64, 2}, MnnRevision::kFinal, 1000);
  Decode(code, 40);
  CHECK(code.metrics().total_evict_tokens == 0);
  MnnEngine measured(published, {32, 4, 4, 64, 2}, MnnRevision::kR6, 1000);
  const Triggered first{1, 15};
  CHECK(Decode(measured, 1).front() == first);
  CHECK(measured.metrics().total_evict_tokens > 0);
}

}  // namespace kv::mnn::h2o::mnn_engine_test
