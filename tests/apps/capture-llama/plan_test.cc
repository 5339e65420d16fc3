// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/capture-llama/plan.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "apps/capture-llama/failure.h"
#include "tests/support/temp_dir.h"

namespace kv::capture_plan_test {
namespace {

using capture::Evictions;
using capture::Failure;
using capture::Geometry;
using nlohmann::json;
using Run = Evictions::Run;

constexpr Geometry kGeometry{2, 4, 2, 8};
constexpr int32_t kTokens = 20;

Evictions Read(const std::string& text) {
  const test::TempDir folder;
  const auto path =
      folder.WriteFile("plan.json", std::as_bytes(std::span(text.data(), text.size())));
  return capture::ReadPlan(path.string(), kGeometry, kTokens);
}

json Plan(json events) {
  // Clang copies a braced list of one value.
  if (events.is_object()) events = json::array({events});
  return {{"schema", "kvtool.h2o-plan/1"}, {"policy", "x"}, {"events", std::move(events)}};
}

json Event(int token, int layer, json head, json kept) {
  return {{"token", token},
          {"layer", layer},
          {"kv_head", std::move(head)},
          {"kept", std::move(kept)},
          {"length_before", token + 1}};
}

std::vector<Run> GoneAt(const Evictions& plan, int32_t layer, int32_t head, int32_t row) {
  return capture::GoneAt(plan.LastRows(layer, head), row);
}

TEST_CASE("an eviction applies before the next token") {
  const Evictions plan =
      Read(Plan({Event(9, 0, 1, {{0, 2}, {6, 4}}), Event(12, 0, 1, {{0, 1}, {10, 3}})}).dump());
  CHECK(GoneAt(plan, 0, 1, 9).empty());
  CHECK(GoneAt(plan, 0, 1, 10) == std::vector<Run>{{2, 6}});
  CHECK(GoneAt(plan, 0, 1, 12) == std::vector<Run>{{2, 6}});
  CHECK(GoneAt(plan, 0, 1, 13) == std::vector<Run>{{1, 10}});
  CHECK(GoneAt(plan, 0, 1, 19) == std::vector<Run>{{1, 10}});
  CHECK(GoneAt(plan, 0, 0, 19).empty());
  CHECK(GoneAt(plan, 1, 1, 19).empty());
  CHECK_FALSE(plan.common());
  CHECK(plan.First() == 9);
}

TEST_CASE("a plan that is the same everywhere has steps") {
  json events = json::array();
  for (int layer = 0; layer < 2; ++layer) {
    events.push_back(Event(9, layer, nullptr, {{0, 2}, {6, 4}}));
    events.push_back(Event(12, layer, nullptr, {{0, 1}, {10, 3}}));
  }
  const Evictions plan = Read(Plan(events).dump());
  CHECK(plan.common());
  using Step = std::pair<int32_t, std::vector<Run>>;
  CHECK(plan.Steps() == std::vector<Step>{{9, {{2, 6}}}, {12, {{1, 2}, {6, 10}}}});
  events.erase(3);
  CHECK_FALSE(Read(Plan(events).dump()).common());
}

TEST_CASE("a plan without events, or that keeps all, evicts nothing") {
  for (const json& events : {json::array(), json::array({Event(9, 1, nullptr, {{0, 10}})})}) {
    const Evictions plan = Read(Plan(events).dump());
    CHECK(plan.common());
    CHECK(plan.First() == Evictions::kNever);
    CHECK(plan.Steps().empty());
  }
}

TEST_CASE("random plans hide what their events say") {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    json events = json::array();
    std::set<int> held;
    std::vector<std::set<int>> visible(kTokens);  // visible positions of each row
    for (int token = 0; token < kTokens; ++token) {
      held.insert(token);
      visible[size_t(token)] = held;
      if (token < 8 || random() % 3 != 0) continue;
      std::erase_if(held, [&](int) { return random() % 4 == 0; });
      json kept = json::array();
      for (const int position : held) kept.push_back({position, 1});
      events.push_back(Event(token, 1, 0, kept));
    }
    const Evictions plan = Read(Plan(events).dump());
    for (int row = 0; row < kTokens; ++row) {
      std::set<int> seen;
      for (int position = 0; position <= row; ++position) seen.insert(position);
      for (const auto& [begin, end] : GoneAt(plan, 1, 0, row)) {
        for (int position = begin; position < end; ++position) seen.erase(position);
      }
      CHECK(seen == visible[size_t(row)]);
    }
  }
}

TEST_CASE("plans that do not fit are refused") {
  const auto refused = [](const json& plan) {
    try {
      Read(plan.dump());
    } catch (const Failure& failure) {
      return failure.status == capture::kInvalid;
    }
    return false;
  };
  CHECK_FALSE(refused(Plan({Event(9, 0, 0, {{0, 10}})})));
  CHECK(refused(Plan({Event(20, 0, 0, {{0, 1}})})));         // beyond the run
  CHECK(refused(Plan({Event(9, 2, 0, {{0, 1}})})));          // no such layer
  CHECK(refused(Plan({Event(9, 0, 2, {{0, 1}})})));          // no such head
  CHECK(refused(Plan({Event(9, 0, 0, {{0, 11}})})));         // the future
  CHECK(refused(Plan({Event(9, 0, 0, {{0, 21}})})));         // position 21 is after the event
  CHECK(refused(Plan({Event(9, 0, 0, {{3, 2}, {4, 1}})})));  // overlap
  CHECK(refused(Plan({Event(9, 0, 0, {{3, 2}, {0, 1}})})));  // descend
  CHECK(refused(Plan({Event(9, 0, 0, {{3, -1}})})));
  CHECK(refused(Plan({Event(9, 0, 0, json::array({json::array({1})}))})));
  CHECK(refused(
      // The second event takes evicted tokens back.
      Plan({Event(9, 0, 0, {{0, 5}}), Event(12, 0, 0, {{0, 6}})})));
  for (const char* key : {"token", "layer", "kv_head", "kept"}) {
    json event = Event(9, 0, 0, {{0, 10}});
    event.erase(key);
    CHECK(refused(Plan({event})));
  }
  json other = Plan(json::array());
  other["schema"] = "kvtool.run/1";
  CHECK(refused(other));
  other.erase("schema");
  CHECK(refused(other));
  other = Plan(json::array());
  other.erase("events");
  CHECK(refused(other));
  CHECK_THROWS_AS(capture::ReadPlan("/no/such/plan", kGeometry, kTokens), Failure);
}

TEST_CASE("damaged plans are refused or read, and nothing else") {
  const std::string whole =
      Plan({Event(9, 0, 1, {{0, 2}, {6, 4}}), Event(12, 0, 1, {{0, 1}, {10, 3}})}).dump();
  for (size_t size = 0; size < whole.size(); ++size) {
    CHECK_THROWS_AS(Read(whole.substr(0, size)), Failure);
  }
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::string damaged = whole;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    try {
      Read(damaged);
    } catch (const Failure& failure) {
      CHECK(failure.status == capture::kInvalid);
    }
  }
}

}  // namespace
}  // namespace kv::capture_plan_test
