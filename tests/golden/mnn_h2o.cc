// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"
#include "lib/study/dense/score.h"
#include "tests/golden/golden.h"

namespace kv::golden {
namespace {

using mnn::h2o::CallEnd;
using mnn::h2o::CallStart;
using mnn::h2o::MnnEngine;
using nlohmann::json;

// Floats are printed with 9 digits, which identifies a float32.
bool SameFloat(double printed, float value) { return static_cast<float>(printed) == value; }

bool SameFloats(const json& printed, std::span<const float> values) {
  if (printed.size() != values.size()) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!SameFloat(printed[i].get<double>(), values[i])) return false;
  }
  return true;
}

// Evaluates the manifest's closed form of the accumulator, exact in float32.
std::vector<float> GeneratedSums(int generator, uint64_t layer, uint64_t step, uint64_t blocks,
                                 uint32_t heads) {
  std::vector<float> sums(blocks);
  for (uint64_t block = 0; block < blocks; ++block) {
    uint64_t x = 32768;
    if (generator == 0) x = (layer * 7919 + step * 15485 + block * 40503 + 12345) & 65535;
    if (generator == 2) x = (layer * 7919 + block * 40503 + 12345) & 65535;
    sums[block] = static_cast<float>(x) / 65536.0f * static_cast<float>(heads);
  }
  return sums;
}

json Pairs(const KeepPlan& plan) {
  json pairs = json::array();
  for (const auto& range : plan) pairs.insert(pairs.end(), {range.begin, range.count});
  return pairs;
}

json Runs(const KeepPlan& positions) {
  json runs = json::array();
  for (const auto& range : positions) runs.push_back({range.begin, range.count});
  return runs;
}

struct Call {
  CallStart start;
  CallEnd end;
  std::vector<float> sums;
  KeepPlan positions;
};

void CheckTrigger(const json& event, const Call& call, const MnnEngine& engine, bool any_choice) {
  const auto& metrics = engine.metrics();
  const uint32_t layer = call.start.layer;
  CHECK(event.at("evicted") == call.end.decision.evicted);
  CHECK(event.at("plan_ready") == (call.end.decision.plan.empty() ? 0 : 1));
  CHECK(event.at("pending_remove") == engine.pending_remove(layer));
  CHECK(SameFloat(event.at("keep_ratio"), metrics.keep_ratio));
  CHECK(SameFloat(event.at("target_keep_effective"), metrics.target_keep_effective));
  CHECK(SameFloat(event.at("floor_keep"), metrics.floor_keep));
  CHECK(SameFloat(event.at("quantized_keep"), metrics.quantized_keep));
  if (any_choice) return;
  CHECK(SameFloat(event.at("lossy_ratio"), metrics.lossy_ratio));
  CHECK(event.at("reserve_pairs") == Pairs(engine.pending(layer)));
  CHECK(SameFloats(event.at("scores_after"), engine.scores(layer)));
}

void CheckEvent(const json& event, const Call& call, const MnnEngine& engine, bool any_choice) {
  CHECK(event.at("global_step") == call.start.global_step);
  CHECK(event.at("plan_applied") == call.start.plan_applied);
  CHECK(event.at("len_before") == call.start.length_before);
  CHECK(event.at("len_after_compact") == call.start.length_compacted);
  CHECK(event.at("kv_len") == call.start.length);
  CHECK(event.at("triggered") == call.end.triggered);
  CHECK(event.at("final_keep_tokens") == call.end.final_keep_tokens);
  if (event.contains("block_acc")) CHECK(SameFloats(event["block_acc"], call.sums));
  if (call.end.triggered) CheckTrigger(event, call, engine, any_choice);
  if (any_choice) return;
  if (event.contains("ema_scores")) CHECK(SameFloats(event["ema_scores"], call.end.ema_scores));
  if (event.contains("token_ids_after")) CHECK(event["token_ids_after"] == Runs(call.positions));
}

void CheckFinal(const json& expected, const MnnEngine& engine, size_t layers, bool any_choice) {
  REQUIRE(expected.at("layer_kv_len").size() == layers);
  for (size_t layer = 0; layer < layers; ++layer) {
    CHECK(expected["layer_kv_len"][layer] == engine.length(static_cast<uint32_t>(layer)));
  }
  CHECK(expected.at("meta_previous") == engine.meta_previous());
  CHECK(expected.at("total_evict_tokens") == engine.metrics().total_evict_tokens);
  CHECK(SameFloat(expected.at("keep_ratio"), engine.metrics().keep_ratio));
  if (!any_choice) CHECK(SameFloat(expected.at("lossy_ratio"), engine.metrics().lossy_ratio));
}

// Checks a scenario, and returns the number of compared events.
int CheckScenario(const json& scenario) {
  const json& params = scenario.at("params");
  eviction::BlockConfig config;
  for (const auto& [name, value] : params.items()) {
    mnn::h2o::SetParameter(name, value.get<double>(), config);
  }
  const mnn::h2o::MnnGeometry geometry{params.at("layers"), params.at("num_head"),
                                       params.at("kv_num_head"), params.at("head_dim"),
                                       params.at("bytes_per_elem")};
  const uint64_t prompt = params.at("prompt_tokens");
  const uint64_t steps = params.at("decode_steps");
  // MNN broke these ties by an unstable sort, so any choice of the same size is accepted.
  const bool any_choice = scenario.at("name") == "ties_many";
  MnnEngine engine(config, geometry, mnn::h2o::MnnRevision::kFinal, prompt);
  std::vector<KeepPlan> positions(geometry.layers, KeepPlan{{0, static_cast<uint32_t>(prompt)}});
  size_t next = 0;
  const json& events = scenario.at("events");
  for (uint64_t step = 1; step <= steps; ++step) {
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      Call call;
      call.start = engine.Begin();
      if (call.start.plan_applied) positions[layer] = Select(positions[layer], call.start.applied);
      Append(positions[layer], {static_cast<uint32_t>(prompt + step - 1), 1});
      call.positions = positions[layer];
      if (call.start.in_range) {
        call.sums = GeneratedSums(params.at("score_gen"), layer, step,
                                  engine.blocks(call.start.length), geometry.query_heads);
      }
      call.end = engine.Finish(call.sums);
      if (next >= events.size()) continue;
      const json& event = events[next];
      const bool is_next = event.at("step") == step && event.at("layer") == layer;
      INFO("step " << step << " layer " << layer);
      // Quiet scenarios list only the calls that triggered a plan or applied one.
      if (!is_next) {
        CHECK_FALSE((call.end.triggered || call.start.plan_applied));
        continue;
      }
      CheckEvent(event, call, engine, any_choice);
      ++next;
    }
  }
  CHECK(next == events.size());
  CheckFinal(scenario.at("final"), engine, geometry.layers, any_choice);
  return static_cast<int>(next);
}

void CheckAccumulation(const json& item) {
  const size_t block = item.at("h2o_block_tokens");
  REQUIRE(block > 0);
  const auto rule = item.at("flash").get<bool>() ? WeightRule::kFlashLocal : WeightRule::kSoftmax;
  std::vector<float> sums(CeilDiv(item.at("kv_len").get<size_t>(), block));
  for (const json& head : item.at("logits")) {
    std::vector<float> row = head.get<std::vector<float>>();
    REQUIRE(row.size() <= sums.size() * block);
    WeighRow(row.data(), row.size(), rule);
    AddInOrder(row.data(), row.size(), block, sums.data());
  }
  REQUIRE(item.at("block_acc").size() == sums.size());
  for (size_t b = 0; b < sums.size(); ++b) {
    const double expected = item["block_acc"][b];
    INFO("block " << b << ": " << sums[b] << " against " << expected);
    CHECK(std::abs(sums[b] - expected) <= 1e-5 * std::abs(expected));
  }
}

}  // namespace

void CheckMnnH2o(Run& run) {
  for (const json& scenario : run.Json("mnn/h2o/scenarios.json")) {
    INFO("scenario " << scenario.at("name").get<std::string>());
    run.Checked(CheckScenario(scenario));
  }
  for (const json& item : run.Json("mnn/h2o/score_accumulation.json")) {
    INFO("accumulation " << item.at("name").get<std::string>());
    CheckAccumulation(item);
    run.Checked();
  }
}

}  // namespace kv::golden
