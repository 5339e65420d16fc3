// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/states.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/core/snapshot/layout.h"

namespace kv::advise::states_test {
namespace {

constexpr uint32_t kHeads = 2, kDim = 8;

// A cache of one layer whose rows follow from token ids and, from one token on, from another seed.
struct Chat {
  Bytes k, v;
  Snapshot snapshot;

  Chat(uint64_t tokens, uint64_t other_from = UINT64_MAX, uint32_t seed = 0) {
    const uint64_t row = uint64_t{kHeads} * kDim * 2;
    for (Bytes* bytes : {&k, &v}) {
      bytes->resize(tokens * row);
      for (uint64_t i = 0; i < bytes->size(); ++i) {
        const uint64_t mixed = i * 2654435761u + (i / row >= other_from ? seed : 0);
        (*bytes)[i] = static_cast<std::byte>(mixed >> 8);
      }
    }
    LayerKv layer;
    layer.k = ContiguousTensor(k.data(), DType::kF16, tokens, kHeads, kDim, Order::kTokenHeadDim);
    layer.v = ContiguousTensor(v.data(), DType::kF16, tokens, kHeads, kDim, Order::kTokenHeadDim);
    snapshot.layers.push_back(layer);
    for (uint64_t i = 0; i < tokens; ++i) snapshot.tokens.push_back(static_cast<int32_t>(i));
  }

  SavedState As(std::string name) const {
    SavedState state = DescribeState(snapshot);
    state.name = std::move(name);
    state.bytes = k.size() + v.size();
    return state;
  }
};

const SavedState& Named(const std::vector<SavedState>& states, std::string_view name) {
  return *std::find_if(states.begin(), states.end(),
                       [&](const SavedState& of) { return of.name == name; });
}

// Stands in for the comparison of all bytes: states whose compared rows are equal are equal.
bool Whatever(const SavedState&, const SavedState&) { return true; }

}  // namespace

TEST_CASE("a state is contained or the same only where all bytes say so", "[advise]") {
  std::vector<SavedState> states = {Chat(300).As("a"), Chat(300).As("flipped"), Chat(300).As("b"),
                                    Chat(700).As("long")};
  for (size_t i = 0; i < states.size(); ++i) states[i].written_s = static_cast<int64_t>(i);
  const auto holds = [](const SavedState& whole, const SavedState& part) {
    return whole.name != "flipped" && part.name != "flipped";
  };
  CompareStates(states, holds);
  CHECK(Named(states, "flipped").kinship == Kinship::kAlike);
  CHECK_FALSE(Named(states, "flipped").contained);
  CHECK(Named(states, "a").kin == "b");
  CHECK(Named(states, "a").kinship == Kinship::kSame);
  CHECK(Named(states, "b").kinship == Kinship::kContained);
  CHECK(Named(states, "long").kinship == Kinship::kGrows);
  CHECK(Named(states, "long").kin == "b");
}

TEST_CASE("rows are held where all layers, K, V and token ids agree", "[advise]") {
  CHECK(HoldsRows(Chat(700).snapshot, Chat(300).snapshot));
  CHECK_FALSE(HoldsRows(Chat(300).snapshot, Chat(700).snapshot));
  CHECK_FALSE(HoldsRows(Chat(700, 200, 99999).snapshot, Chat(300).snapshot));
  Chat other(300);
  other.snapshot.tokens[7] = -1;
  CHECK_FALSE(HoldsRows(Chat(700).snapshot, other.snapshot));
  Chat flipped(300);
  flipped.k[20] ^= std::byte{1};
  CHECK_FALSE(HoldsRows(Chat(700).snapshot, flipped.snapshot));
}

TEST_CASE("states are compared by their longest common beginning", "[advise]") {
  std::vector<SavedState> states = {Chat(700).As("long"), Chat(300).As("short"),
                                    Chat(700, 600, 99999).As("branch"),
                                    Chat(200, 0, 12345).As("other")};
  CompareStates(states, Whatever);
  CHECK(Named(states, "short").kinship == Kinship::kContained);
  CHECK(Named(states, "short").contained);
  CHECK(Named(states, "long").shared_tokens == 600);
  CHECK(Named(states, "branch").kinship == Kinship::kBranches);
  CHECK(Named(states, "branch").same_ids == 700);
  CHECK(Named(states, "other").kinship == Kinship::kAlone);
  CHECK_FALSE(Named(states, "other").contained);
  // One of the two long states continues the short one, the other continues the first, in blocks of
  // 256.
  uint64_t stored = 0;
  for (const SavedState& state : states) stored += state.stored_tokens;
  CHECK(stored == 256 + 512);
}

TEST_CASE("of equal states all but the last written are contained", "[advise]") {
  std::vector<SavedState> states = {Chat(300).As("new"), Chat(300).As("old")};
  states[0].written_s = 200;
  states[1].written_s = 100;
  CompareStates(states, Whatever);
  CHECK_FALSE(states[0].contained);
  CHECK(states[1].contained);
  CHECK(states[0].kinship == Kinship::kSame);
  CHECK(states[0].stored_tokens == 300);
}

TEST_CASE("states of another geometry share nothing, and archives are not looked into",
          "[advise]") {
  std::vector<SavedState> states = {Chat(300).As("a"), Chat(300).As("b"), {}};
  states[1].geometry = "another";
  states[2].is_archive = true;
  states[2].bytes = 1000;
  CompareStates(states, Whatever);
  for (const SavedState& state : states) CHECK(state.kinship == Kinship::kAlone);
}

TEST_CASE("the recommendation follows from what is shared and what compresses", "[advise]") {
  StatesAdvice advice;
  advice.states = {Chat(600).As("a"), Chat(600).As("b")};
  Decide(advice);
  CHECK(advice.kind == StatesAdvice::Kind::kKeep);  // nothing was measured
  CompareStates(advice.states, Whatever);
  const Chat chat(600);
  std::vector<GeometrySample> samples = {
      {advice.states.front().geometry, SampleState(chat.snapshot)}};
  REQUIRE(samples.front().chunks.size() == 2);
  MeasureLevels(samples, false, nullptr, advice);
  REQUIRE(advice.levels.size() == 4);
  CHECK_FALSE(advice.levels.front().encode_mb_per_s);
  for (const StatesLevel& level : advice.levels) CHECK(level.store_bytes <= level.alone_bytes);
  Decide(advice);
  CHECK(advice.kind == StatesAdvice::Kind::kStore);
  for (SavedState& state : advice.states) state.stored_tokens = 0;
  for (StatesLevel& level : advice.levels) level.alone_bytes = advice.bytes();
  Decide(advice);
  CHECK(advice.kind == StatesAdvice::Kind::kKeep);
}

TEST_CASE("each geometry counts by its bytes, and one without a sample by the mean", "[advise]") {
  Chat zeros(600);
  std::fill(zeros.k.begin(), zeros.k.end(), std::byte{0});
  std::fill(zeros.v.begin(), zeros.v.end(), std::byte{0});
  const Chat noise(600);
  StatesAdvice advice;
  advice.states = {zeros.As("zeros"), noise.As("noise"), noise.As("other")};
  advice.states[0].geometry = "zeros";
  const uint64_t bytes = advice.states[1].bytes;
  const std::vector<GeometrySample> samples = {
      {"zeros", SampleState(zeros.snapshot)},
      {advice.states[1].geometry, SampleState(noise.snapshot)}};
  StatesAdvice small = advice;
  small.states.pop_back();
  MeasureLevels(samples, false, nullptr, small);
  MeasureLevels(samples, false, nullptr, advice);
  // A noisy state and one of zeros take about one state's bytes, and with a second noisy one about
  // two.
  const double alone = static_cast<double>(small.levels.front().alone_bytes);
  CHECK(static_cast<double>(advice.levels.front().alone_bytes) < 2 * alone + 1);
  CHECK(static_cast<double>(advice.levels.front().alone_bytes) > 1.8 * alone);
  advice = small;
  advice.levels.clear();
  advice.states[0].geometry = "not sampled";
  MeasureLevels({samples[1]}, false, nullptr, advice);
  CHECK(advice.levels.front().alone_bytes <= 2 * bytes);
}

TEST_CASE("the more states there are, the fewer tokens of each are compared", "[advise]") {
  CHECK(MostComparedTokens(0) == kMostComparedTokens);
  CHECK(MostComparedTokens(64) == kMostComparedTokens);
  CHECK(MostComparedTokens(10000) == (uint64_t{64} << 20) / 10000);
  const SavedState state = DescribeState(Chat(300).snapshot, 100);
  CHECK(state.tokens == 300);
  CHECK(state.rows.size() == 100);
  CHECK(state.ids.size() == 100);
}

TEST_CASE("what has no rows is described and alone", "[advise]") {
  CHECK(DescribeState(Snapshot{}).tokens == 0);
  Snapshot without_bytes = Chat(10).snapshot;
  for (LayerKv& layer : without_bytes.layers) layer.k.pieces.clear();
  for (LayerKv& layer : without_bytes.layers) layer.v.reset();
  CHECK(DescribeState(without_bytes).rows.empty());
  CHECK(SampleState(without_bytes).empty());
}

}  // namespace kv::advise::states_test
