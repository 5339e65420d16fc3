// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/core/weights/weights.h"
#include "tests/support/mlp_weights.h"

namespace kv::plan_test {
namespace {

using test::CacheShape;
using test::MakeCache;
using test::MakeWeights;
using test::WeightsShape;

// Returns the finding that planning fails with.
std::optional<Finding> Refusal(const Snapshot& cache, const CompressorWeights& weights,
                               const StepSettings& settings = {}) {
  try {
    PlanStep(cache, weights, settings);
  } catch (const Error& error) {
    return error.finding();
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("lengths are those of the definition's worked examples", "[mlp]") {
  const struct {
    uint64_t tokens, image, expected;
  } examples[] = {{21, 11, 5}, {20, 0, 4}, {23, 0, 7}, {9, 0, 9},       {10, 0, 2},     {23, 5, 11},
                  {10, 5, 10}, {14, 0, 6}, {15, 0, 3}, {576, 576, 116}, {581, 581, 117}};
  const CompressorWeights weights =
      MakeWeights({.layers = 1, .head_dim = 1, .factor = 5, .hidden = 1, .min_seq_len = 2});
  for (const auto& [tokens, image, expected] : examples) {
    INFO(tokens << " tokens, image " << image);
    const Snapshot cache = MakeCache({.layers = 1, .heads = 1, .head_dim = 1, .tokens = tokens});
    const StepPlan plan = PlanStep(cache, weights, {.image_len = image});
    CHECK(plan.new_length == expected);
    CHECK(CompressedLength(image, 5, 2) + CompressedLength(tokens - image, 5, 2) == expected);
  }
}

TEST_CASE("the tokens of a result stand for every token of the cache once, in order", "[mlp]") {
  const CompressorWeights weights = MakeWeights({.layers = 1, .head_dim = 1, .factor = 4});
  for (uint64_t tokens = 1; tokens < 40; ++tokens) {
    for (uint64_t image = 0; image <= tokens; image += 3) {
      const Snapshot cache = MakeCache({.layers = 1, .heads = 1, .head_dim = 1, .tokens = tokens});
      const StepPlan plan = PlanStep(cache, weights, {.image_len = image});
      const std::vector<TokenRange> sources = plan.Sources();
      REQUIRE(sources.size() == plan.new_length);
      uint64_t at = 0;
      for (const TokenRange& range : sources) {
        REQUIRE(range.begin == at);
        REQUIRE((range.end - at == 1 || range.end - at == 4));
        // A group never crosses the border of two segments.
        REQUIRE((range.end <= image || range.begin >= image));
        at = range.end;
      }
      REQUIRE(at == tokens);
    }
  }
}

TEST_CASE("settings of 0 and 1 mean the weights' own, others win", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  const CompressorWeights weights = MakeWeights({.factor = 3, .min_seq_len = 4});
  const StepPlan own = PlanStep(cache, weights, {.factor = 1});
  CHECK(own.factor == 3);
  CHECK(own.factor_from_weights);
  CHECK(own.min_seq_len == 4);
  const StepPlan asked = PlanStep(cache, weights, {.factor = 3, .min_seq_len = 7});
  CHECK_FALSE(asked.factor_from_weights);
  CHECK(asked.new_length == 20);  // six groups, fewer than min_seq_len
  CHECK(asked.text.raw_reason == RawReason::kFewGroups);
}

TEST_CASE("image and cache lengths are clamped", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  const CompressorWeights weights = MakeWeights({});
  const StepPlan plan = PlanStep(cache, weights, {.image_len = 1000, .seq_len = 500});
  CHECK(plan.tokens == 20);
  CHECK(plan.image_len == 20);
  CHECK(plan.text.tokens == 0);
  const StepPlan part = PlanStep(cache, weights, {.image_len = 15, .seq_len = 12});
  CHECK(part.tokens == 12);
  CHECK(part.image_len == 12);
  CHECK(part.bytes_before == 2 * 2 * 12 * 3 * 4 * 4u);
  CHECK(part.bytes_after == 2 * 2 * 4 * 3 * 4 * 4u);
}

TEST_CASE("text-only weights leave the image prefix as it is", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  const StepPlan plan = PlanStep(cache, MakeWeights({.prefixes = 2}), {.image_len = 9});
  CHECK(plan.image.groups == 0);
  CHECK(plan.image.raw_reason == RawReason::kNoImageWeights);
  CHECK(plan.text.groups == 3);
  CHECK(plan.new_length == 9 + 3 + 2);
}

TEST_CASE("a plan counts the multiplications it asks for", "[mlp]") {
  const Snapshot cache = MakeCache({.layers = 1, .heads = 3, .tokens = 6});
  const StepPlan plan = PlanStep(cache, MakeWeights({.layers = 1, .head_dim = 4, .hidden = 6}), {});
  // FLOPs for K and V, 3 heads x 2 groups, layers 12 -> 6 -> 6 -> 4.
  CHECK(plan.flop == 2 * 6 * 2 * (12 * 6 + 6 * 6 + 6 * 4u));
}

TEST_CASE("what does not fit is refused before anything is computed", "[mlp]") {
  const Snapshot cache = MakeCache({});
  CHECK(Refusal(cache, MakeWeights({})) == std::nullopt);
  // Weights with fewer layers than the cache are refused, with more they are accepted.
  CHECK(Refusal(cache, MakeWeights({.layers = 1})) == Finding::kInconsistent);
  CHECK(Refusal(cache, MakeWeights({.layers = 5})) == std::nullopt);
  // The factor and the head dim disagree with the shapes.
  CHECK(Refusal(cache, MakeWeights({}), {.factor = 4}) == Finding::kInconsistent);
  CHECK(Refusal(cache, MakeWeights({.head_dim = 6})) == Finding::kInconsistent);
  CHECK(Refusal(MakeCache({.head_dim = 6}), MakeWeights({})) == Finding::kInconsistent);
  // No weights.
  CompressorWeights no_text = MakeWeights({});
  no_text.prefixes = {"compress_ik", "compress_iv", "a", "b"};
  CHECK(Refusal(cache, no_text) == Finding::kMissingRecord);
  CompressorWeights no_factor = MakeWeights({});
  no_factor.header.compression_factor = 0;
  CHECK(Refusal(cache, no_factor) == Finding::kInconsistent);
  CHECK(Refusal(cache, no_factor, {.factor = 3}) == std::nullopt);
  // Blocks are refused if their shapes do not chain, or if the last has not head_dim outputs.
  CompressorWeights broken = MakeWeights({});
  broken.blocks[4].weight.shape = {6, 5};  // layer 0, text V, second block
  CHECK(Refusal(cache, broken) == Finding::kInconsistent);
  broken = MakeWeights({});
  broken.blocks[12 + 8].weight.shape = {3, 6};  // layer 1, image K, last block
  CHECK(Refusal(cache, broken) == Finding::kInconsistent);
}

TEST_CASE("caches that the step is not defined for are refused", "[mlp]") {
  const CompressorWeights weights = MakeWeights({});
  Snapshot cache = MakeCache({});
  cache.layers[1].v->dtype = DType::kF64;
  CHECK(Refusal(cache, weights) == Finding::kUnsupportedDtype);
  cache = MakeCache({});
  cache.layers[1].v.reset();
  CHECK(Refusal(cache, weights) == Finding::kUnsupportedKind);
  cache = MakeCache({});
  cache.k_hadamard = HadamardState::kYes;
  CHECK(Refusal(cache, weights) == Finding::kUnsupportedKind);
  cache = MakeCache({});
  cache.layers[1].k.pieces[0].tokens = 19;
  CHECK(Refusal(cache, weights) == Finding::kInconsistent);
  CHECK(Refusal(cache, weights, {.seq_len = 15}) == std::nullopt);  // both layers have 15 tokens
  cache = MakeCache({});
  cache.layers[0].k.heads_known = false;
  CHECK(Refusal(cache, weights) == Finding::kGeometryMissing);
  cache.layers.clear();
  CHECK(Refusal(cache, weights) == Finding::kInconsistent);
  CHECK(Refusal(MakeCache({.tokens = 0}), weights) == Finding::kInconsistent);
}

}  // namespace kv::plan_test
