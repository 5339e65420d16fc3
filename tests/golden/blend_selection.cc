// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// CacheBlend: selections of the reference.
#include <catch2/catch.hpp>
#include <cmath>

#include "lib/core/kernels/deviation.h"
#include "lib/engines/cacheblend/deviation.h"
#include "tests/golden/blend_tensors.h"
#include "tests/golden/checks.h"

namespace kv::golden {
namespace {

using blend::Ranking;
using blend::Selection;
using nlohmann::json;

using Indices = std::vector<uint64_t>;

constexpr double kScoreTolerance = 1e-5;

// Pair holds the rows of a selection's two tensors.
struct Pair {
  std::vector<float> full, old;
  uint64_t tokens, channels;

  Pair(const Tensors& tensors, const std::string& kind)
      : full(tensors.Floats(kind + "_new")), old(tensors.Floats(kind + "_old")) {
    REQUIRE(tensors.View(kind + "_old").shape == tensors.View(kind + "_new").shape);
    REQUIRE(!full.empty());
    tokens = tensors.View(kind + "_new").shape.at(0);
    channels = full.size() / tokens;
  }
  std::vector<float> Scores(uint64_t count, std::optional<DType> dtype = {}) const {
    REQUIRE(count <= tokens);
    std::vector<float> scores(count);
    for (uint64_t t = 0; t < count; ++t) {
      const float* a = &full[t * channels];
      const float* b = &old[t * channels];
      scores[t] = dtype ? blend::ScoreInDtype(a, b, channels, *dtype)
                        : static_cast<float>(DeviationOfRow(a, b, channels).difference);
    }
    return scores;
  }
};

void CheckMargin(const Selection& got, const json& expected) {
  if (!expected.contains("margin") || !expected["margin"].is_number()) return;
  REQUIRE(got.margin);
  CHECK(std::abs(*got.margin - expected["margin"].get<double>()) <=
        2 * kScoreTolerance * std::abs(static_cast<double>(*got.kept_min)));
}

void CheckScores(const std::vector<float>& got, const std::vector<float>& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t t = 0; t < got.size(); ++t) {
    CHECK(std::abs(got[t] - expected[t]) <= kScoreTolerance * std::abs(expected[t]));
  }
}

void CheckTies(const Selection& got, const json& expected) {
  CHECK(got.indices == expected.at("indices_lowest_index_first").get<Indices>());
  CHECK(got.margin == 0.0);
  const Indices pick_from = expected.at("pick_from");
  CHECK(got.ties == pick_from.size());
  size_t picked = 0;
  for (const uint64_t index : got.indices) {
    picked += std::count(pick_from.begin(), pick_from.end(), index) != 0;
  }
  CHECK(picked == expected.at("pick_count").get<size_t>());
}

// In the model's own dtype the choice is exact if there are no ties at the cut, and otherwise equal
// except for tied tokens.
void CheckNative(const Ranking& ranking, uint64_t topk, uint64_t tokens, const json& expected) {
  const Selection got = ranking.Select(topk, tokens);
  const Indices wanted = expected.at("native_dtype_indices");
  REQUIRE(got.indices.size() == wanted.size());
  if (!expected.value("native_boundary_tie", false)) {
    CHECK(got.indices == wanted);
    return;
  }
  for (const uint64_t index : wanted) {
    if (index < ranking.scores().size()) CHECK(ranking.scores()[index] >= *got.kept_min);
  }
}

void CheckSelection(const json& item, const json& expected, const Tensors& tensors, Run& run) {
  const double ratio = expected.at("ratio");
  INFO("ratio " << ratio);
  const Pair v(tensors, "v");
  const uint64_t scored = v.tokens - item.at("suffix_len").get<uint64_t>();
  const Ranking ranking(v.Scores(scored));
  const Selection got = ranking.Select(blend::TopCount(scored, ratio), v.tokens);
  CHECK(got.topk == expected.at("topk").get<uint64_t>());
  if (expected.contains("indices")) CHECK(got.indices == expected["indices"].get<Indices>());
  if (expected.contains("indices_lowest_index_first")) CheckTies(got, expected);
  if (expected.contains("nonfinite_tokens")) {
    CHECK(ranking.nonfinite() == expected["nonfinite_tokens"].size());
  }
  CheckMargin(got, expected);
  run.Checked();
  if (expected.contains("lmcache")) {
    const Pair k(tensors, "k");
    const Ranking keys(k.Scores(k.tokens));
    const Selection lmcache = keys.Select(blend::TopCount(k.tokens, ratio), k.tokens);
    CHECK(lmcache.topk == expected["lmcache"].at("topk").get<uint64_t>());
    CHECK(lmcache.indices == expected["lmcache"].at("indices").get<Indices>());
    CheckMargin(lmcache, expected["lmcache"]);
    run.Checked();
  }
  if (expected.contains("native_dtype_indices")) {
    CheckNative(Ranking(v.Scores(scored, tensors.View("v_new").dtype)), got.topk, v.tokens,
                expected);
    run.Checked();
  }
}

// Checks inputs that the command refuses, or accepts although CacheBlend's code fails.
void CheckRefusals(const json& cases, Run& run) {
  for (const auto& item : cases) {
    const std::string name = item.at("name");
    INFO(name);
    const bool rejects = item.at("kvtool").get<std::string>().substr(0, 6) == "reject";
    if (name.substr(0, 5) == "ratio") {
      const double ratio = item.contains("ratio") ? item["ratio"].get<double>() : NAN;
      REQUIRE(rejects);
      CHECK_THROWS_AS(blend::TopCount(16, ratio), Error);
    } else if (item.contains("suffix_len")) {
      const uint64_t tokens = item.at("tokens"), suffix = item.at("suffix_len");
      if (rejects) {
        CHECK_THROWS_AS(blend::RequireSuffix(tokens, suffix), Error);
      } else {
        blend::RequireSuffix(tokens, suffix);
        const Ranking ranking(std::vector<float>(tokens - suffix, 1.0f));
        const uint64_t k = blend::TopCount(tokens - suffix, item.at("ratio"));
        CHECK(ranking.Select(k, tokens).indices.size() == k + suffix);
      }
    } else {
      continue;  // shapes: tests/engines/cacheblend/chunks_test.cc
    }
    run.Checked();
  }
}

}  // namespace

void CheckBlendHkvd(Run& run) {
  const json manifest = run.Json("blend/manifest.json");
  for (const json& item : manifest.value("hkvd", json::array())) {
    INFO(item.at("name"));
    const auto path = run.File("blend/" + item.at("file").get<std::string>());
    if (!path) continue;
    const Tensors tensors(*path);
    for (const json& expected : item.at("expect")) CheckSelection(item, expected, tensors, run);
    if (!item.contains("score_file")) continue;
    const auto score_path = run.File("blend/" + item["score_file"].get<std::string>());
    if (!score_path) continue;
    const Tensors scores(*score_path);
    const Pair v(tensors, "v");
    CheckScores(v.Scores(v.tokens - item.at("suffix_len").get<uint64_t>()), scores.Floats("v_dev"));
    run.Checked();
    if (!scores.Has("k_dev_lmcache")) continue;
    const Pair k(tensors, "k");
    CheckScores(k.Scores(k.tokens), scores.Floats("k_dev_lmcache"));
    run.Checked();
  }
  CheckRefusals(manifest.value("hkvd_errors", json::array()), run);
}

}  // namespace kv::golden
