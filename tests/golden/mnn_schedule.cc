// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/engines/mnn/runtime/replay.h"
#include "tests/golden/golden.h"
#include "tests/support/attention_case.h"

namespace kv::golden {

void CheckMnnSchedule(Run& run);

namespace {

using mnn::runtime::Config;
using nlohmann::json;

Config ConfigOf(const json& scenario) {
  const json& params = scenario.at("params");
  Config config;
  mnn::runtime::SetParameter("h2o_lossless_runtime_mode", scenario.at("mode").get<double>(),
                             config);
  config.hot_sink_tokens = params.at("hot_sink");
  config.hot_recent_tokens = params.at("hot_recent");
  config.block_tokens = params.at("block_tokens");
  config.store_grouped_step_tokens = params.at("store_grouped_step");
  config.store_bootstrap_tokens = params.at("store_bootstrap");
  return Sanitised(config);
}

// Checks one layer. Its budget is its length, less a constant once a given step is reached. Returns
// the number of events compared.
int CheckScheduleScenario(const json& scenario) {
  const Config config = ConfigOf(scenario);
  const json& params = scenario.at("params");
  const json& events = scenario.at("events");
  const uint64_t shrink_at = scenario.at("shrink_at_step");
  // The number of removed tokens, despite the name: see the manifest.
  const uint64_t removed = scenario.at("shrink_budget_to");
  mnn::runtime::LayerClock clock;
  uint64_t length = scenario.at("prompt_tokens"), encoded = 0;
  size_t next = 0;
  for (uint64_t step = 1; step <= scenario.at("decode_steps").get<uint64_t>(); ++step) {
    ++length;
    uint64_t budget = length;
    if (shrink_at != 0 && step >= shrink_at) budget -= std::min(budget, removed);
    const mnn::runtime::ColdRange cold = FindColdRange(config, budget);
    Shrink(cold, clock);
    const auto range = NextEncode(config, params.at("trigger_min"), params.at("update_interval"),
                                  clock, cold, length, step);
    if (!range) continue;
    INFO("step " << step);
    Advance(config, cold, *range, step, clock);
    encoded += range->tokens;
    REQUIRE(next < events.size());
    const json& event = events[next++];
    CHECK(event.at("step") == step);
    CHECK(event.at("kv_len") == length);
    CHECK(event.at("budget") == budget);
    CHECK(event.at("cold") == json({cold.begin, cold.end}));
    CHECK(event.at("start") == range->begin);
    CHECK(event.at("count") == range->tokens);
    CHECK(event.at("bootstrap") == range->bootstrap);
    CHECK(event.at("last_budget_after") == clock.last_budget);
  }
  CHECK(next == events.size());
  CHECK(encoded == scenario.at("total_encoded_tokens"));
  CHECK(length == scenario.at("final_kv_len"));
  return static_cast<int>(next);
}

// Compares with the events of the real runtime, with threads and codec, over a cache of noise.
void CheckReplay(const json& scenario) {
  if (scenario.at("shrink_at_step") != 0) return;  // no runtime shrinks its budget itself
  const json& params = scenario.at("params");
  const uint64_t prompt = scenario.at("prompt_tokens");
  test::CaseShape shape{.layers = 1, .query_heads = 1, .kv_heads = 1, .dim = 4};
  shape.tokens = prompt + scenario.at("decode_steps").get<uint64_t>();
  const auto made = test::MakeAttentionCase(shape, 1);
  mnn::runtime::ReplayRequest request;
  request.lossless = ConfigOf(scenario);
  request.lossless.enable = true;
  request.lossless.gear_delta = true;
  request.lossless.runtime_enable = true;
  request.h2o.trigger_min_tokens = params.at("trigger_min");
  request.h2o.update_interval = params.at("update_interval");
  request.prompt_tokens = prompt;
  request.keep_events = true;
  ThreadPool pool(1);
  const mnn::runtime::ReplayResult result = Replay(made->snapshot, nullptr, request, pool);
  CHECK(result.content.equal());
  json replayed = json::array(), expected = json::array();
  for (const mnn::runtime::Event& event : result.events) {
    if (event.kind != mnn::runtime::EventKind::kEncode) continue;
    replayed.push_back({event.token - prompt + 1, event.length, event.begin, event.tokens});
  }
  for (const json& event : scenario.at("events")) {
    expected.push_back(
        {event.at("step"), event.at("kv_len"), event.at("start"), event.at("count")});
  }
  CHECK(replayed == expected);
}

}  // namespace

void CheckMnnSchedule(Run& run) {
  for (const json& scenario : run.Json("mnn/schedule/lossless_schedule.json")) {
    INFO(scenario.at("name").get<std::string>());
    run.Checked(CheckScheduleScenario(scenario));
    CheckReplay(scenario);
  }
}

}  // namespace kv::golden
