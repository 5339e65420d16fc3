// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/engines/infinilm/compressor.h"
#include "tests/support/mlp_weights.h"

namespace kv::csrc_outcome_test {

using test::MakeCache;
using test::MakeWeights;

TEST_CASE("csrc and the plan agree where weights fit", "[mlp]") {
  for (const uint32_t prefixes : {2u, 4u}) {
    const CompressorWeights weights = MakeWeights({.prefixes = prefixes});
    for (uint64_t tokens = 1; tokens < 30; ++tokens) {
      for (uint64_t image = 0; image <= tokens; image += 2) {
        const Snapshot cache = MakeCache({.tokens = tokens});
        const StepSettings settings{.image_len = image};
        const CsrcOutcome outcome = SimulateCsrc(weights, cache, settings);
        REQUIRE(outcome.effect == CsrcEffect::kCompresses);
        REQUIRE_FALSE(outcome.corrupts());
        const StepPlan plan = PlanStep(cache, weights, settings);
        REQUIRE(outcome.returned_length == plan.new_length);
        REQUIRE(outcome.layers_overwritten[1] == (plan.image.groups + plan.text.groups > 0));
      }
    }
  }
}

TEST_CASE("a factor that does not fit is passed over in silence", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  const CsrcOutcome outcome = SimulateCsrc(MakeWeights({}), cache, {.factor = 4});
  CHECK(outcome.effect == CsrcEffect::kNothing);
  CHECK(outcome.returned_length == 20);
  CHECK(outcome.layers_overwritten == std::vector<bool>{false, false});
  CHECK_FALSE(outcome.corrupts());
  CHECK(Name(outcome.effect) == "nothing");
}

TEST_CASE("with a short image prefix the same mistake drops the text", "[mlp]") {
  // The example of mlp-compress: 5 of 20 tokens are kept, 15 are lost, without a message.
  const Snapshot cache = MakeCache({.tokens = 20});
  const CsrcOutcome outcome = SimulateCsrc(MakeWeights({}), cache, {.factor = 4, .image_len = 5});
  CHECK(outcome.effect == CsrcEffect::kLosesTokens);
  CHECK(outcome.returned_length == 5);
  CHECK(outcome.corrupts());
  CHECK(outcome.reason.find("15 tokens") != std::string::npos);
  // The rest of the cache was copied onto itself.
  CHECK(outcome.layers_overwritten == std::vector<bool>{false, false});
  // Text-only weights compress no image, so images are kept at any length.
  const CsrcOutcome text_only =
      SimulateCsrc(MakeWeights({.prefixes = 2}), cache, {.factor = 4, .image_len = 12});
  CHECK(text_only.effect == CsrcEffect::kLosesTokens);
  CHECK(text_only.returned_length == 12);
  CHECK(text_only.layers_overwritten == std::vector<bool>{false, false});
}

TEST_CASE("an image prefix without a result makes room for the text", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  CompressorWeights weights = MakeWeights({});
  // The image MLPs of both layers have another factor; the text is too short to be compressed.
  for (const size_t block : {6u, 9u, 18u, 21u}) weights.blocks[block].weight.shape[1] += 1;
  const CsrcOutcome outcome = SimulateCsrc(weights, cache, {.image_len = 18});
  CHECK(outcome.effect == CsrcEffect::kLosesTokens);
  CHECK(outcome.returned_length == 2);
  CHECK(outcome.layers_overwritten == std::vector<bool>{true, true});
}

TEST_CASE("K and V of a segment have a result together or not at all", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  // Only text V of layer 0 has the wrong shape: it is found before anything is written.
  for (const size_t block : {3u, 4u, 5u}) {
    CompressorWeights weights = MakeWeights({});
    weights.blocks[block].weight.shape[1] += 1;
    const CsrcOutcome alone = SimulateCsrc(weights, cache, {});
    CHECK(alone.effect == CsrcEffect::kNothing);
    CHECK(alone.layers_overwritten == std::vector<bool>{false, false});
    CHECK(alone.returned_length == 20);
    // After a compressed image prefix, layer 0 is shorter than layer 1 would be.
    const CsrcOutcome behind = SimulateCsrc(weights, cache, {.image_len = 10});
    CHECK(behind.effect == CsrcEffect::kHalfWritten);
    CHECK(behind.layers_overwritten == std::vector<bool>{true, false});
    CHECK(behind.returned_length == 20);
  }
}

TEST_CASE("segments that stay raw need no MLPs, even of layers that the file lacks", "[mlp]") {
  const Snapshot cache = MakeCache({.layers = 3, .tokens = 20});
  const CsrcOutcome outcome =
      SimulateCsrc(MakeWeights({.layers = 1}), cache, {.min_seq_len = 50, .image_len = 4});
  CHECK(outcome.effect == CsrcEffect::kCompresses);
  CHECK(outcome.returned_length == 20);
  CHECK(outcome.layers_overwritten == std::vector<bool>{false, false, false});
}

TEST_CASE("heads of another size in V end the worker", "[mlp]") {
  const CompressorWeights weights = MakeWeights({});
  const CsrcLayer layers[] = {{4, 4}, {4, 6}};
  const CsrcOutcome outcome = SimulateCsrc(weights, layers, 20, {});
  CHECK(outcome.effect == CsrcEffect::kThrows);
  CHECK(outcome.layers_overwritten == std::vector<bool>{true, false});
  CHECK(SimulateCsrc(weights, layers, 1, {}).effect == CsrcEffect::kCompresses);
}

TEST_CASE("too few layers leave the cache half overwritten", "[mlp]") {
  const Snapshot cache = MakeCache({.layers = 3, .tokens = 20});
  const CsrcOutcome outcome = SimulateCsrc(MakeWeights({.layers = 2}), cache, {});
  CHECK(outcome.effect == CsrcEffect::kHalfWritten);
  CHECK(outcome.returned_length == 20);
  CHECK(outcome.layers_overwritten == std::vector<bool>{true, true, false});
  CHECK(outcome.corrupts());
}

TEST_CASE("a layer of another shape does too, or throws", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  CompressorWeights weights = MakeWeights({});
  weights.blocks[12].weight.shape = {6, 11};  // layer 1, text K, first block
  CHECK(SimulateCsrc(weights, cache, {}).effect == CsrcEffect::kHalfWritten);
  weights = MakeWeights({});
  weights.blocks[12 + 2].weight.shape = {3, 6};
  const CsrcOutcome outcome = SimulateCsrc(weights, cache, {});
  CHECK(outcome.effect == CsrcEffect::kThrows);
  CHECK(outcome.returned_length == 0);
  CHECK(outcome.layers_overwritten == std::vector<bool>{true, false});
}

TEST_CASE("prefixes in another order are applied where they lie", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  CompressorWeights weights = MakeWeights({});
  weights.names_assumed = false;
  CHECK(SimulateCsrc(weights, cache, {}).effect == CsrcEffect::kCompresses);
  std::swap(weights.prefixes[0], weights.prefixes[2]);
  const CsrcOutcome outcome = SimulateCsrc(weights, cache, {});
  CHECK(outcome.effect == CsrcEffect::kWrongMlp);
  CHECK(outcome.returned_length == 8);
  CHECK(outcome.reason.find("compress_ik lies where csrc expects compress_tk") == 0);
  CHECK(outcome.corrupts());
}

TEST_CASE("no factor and no text MLPs mean nothing happens", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  CompressorWeights weights = MakeWeights({});
  weights.header.compression_factor = 1;
  CHECK(SimulateCsrc(weights, cache, {}).effect == CsrcEffect::kNothing);
  weights = MakeWeights({.prefixes = 2});
  weights.header.blocks_per_layer = 5;
  CHECK(SimulateCsrc(weights, cache, {}).effect == CsrcEffect::kNothing);
}

TEST_CASE("a plan of nothing keeps every token", "[mlp]") {
  const Snapshot cache = MakeCache({.tokens = 20});
  const StepPlan plan = PlanNothing(cache, {.image_len = 6, .seq_len = 15});
  CHECK(plan.new_length == 15);
  CHECK(plan.bytes_before == plan.bytes_after);
  CHECK(plan.Sources().size() == 15);
  CHECK(plan.image.tokens == 6);
  CHECK(plan.text.tokens == 9);
}

}  // namespace kv::csrc_outcome_test
