// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// CacheBlend: a whole replay from three equivalent sets of inputs.
#include <catch2/catch.hpp>
#include <cmath>

#include "formats/registry.h"
#include "lib/engines/cacheblend/replay.h"
#include "tests/golden/blend_tensors.h"
#include "tests/golden/checks.h"

namespace kv::golden {
namespace {

using nlohmann::json;
using Indices = std::vector<uint64_t>;

std::shared_ptr<const Snapshot> Open(const std::filesystem::path& path, const std::string& layout,
                                     uint32_t kv_heads) {
  OpenOptions options;
  options.layout = layout;
  options.geometry.emplace();
  options.geometry->uniform.kv_heads = kv_heads;
  return std::make_shared<Snapshot>(OpenSnapshot(Source::Open(path), options));
}

AttentionTrace TraceOf(const Tensors& tensors, const json& expected) {
  AttentionTrace trace;
  trace.path = tensors.file.source.path;
  trace.query_heads = expected.at("q_heads");
  trace.kv_heads = expected.at("kv_heads");
  trace.head_dim = expected.at("head_dim");
  trace.rows = expected.at("tokens");
  for (uint32_t l = 0; l < expected.at("layers").get<uint32_t>(); ++l) {
    TraceLayer layer;
    layer.layer = l;
    layer.queries = tensors.View("layer." + std::to_string(l) + ".q");
    trace.layers.push_back(std::move(layer));
  }
  return trace;
}

// Rounding of rotated float keys leaves some 1e-14 of the norm where the reference has exactly 0.
void CheckNear(double got, const json& expected, double relative, double zero = 1e-9) {
  const double wanted = expected;
  CHECK(std::abs(got - wanted) <= relative * std::abs(wanted) + zero);
}

void CheckOptional(const std::optional<double>& got, const json& expected,
                   double tolerance = 1e-9) {
  CHECK(got.has_value() == !expected.is_null());
  if (got && !expected.is_null()) CHECK(std::abs(*got - expected.get<double>()) <= tolerance);
}

// The reference ranked tied tokens (the first chunk, which has no deviation) in the order of its
// sort instead of by their average rank. With p tied tokens among n this changes the correlation by
// up to 2 (p / n)^3.
double SpearmanTolerance(const json& expected) {
  const double tied = expected.at("chunks").at(0);
  const double scored =
      expected.at("tokens").get<double>() - expected.at("suffix_len").get<double>();
  return 2 * std::pow(tied / scored, 3);
}

void CheckLayers(const blend::Result& result, const json& expected, Run& run) {
  for (const json& layer : expected.at("per_layer")) {
    const size_t l = layer.at("layer");
    INFO("layer " << l);
    REQUIRE(l < std::min(result.layers.size(), result.ranks.size()));
    const double tolerance = expected.at("tolerances").at("sums_rel");
    CheckNear(result.layers[l].v.sum, layer.at("dev_v_sum"), tolerance);
    CheckNear(result.layers[l].k.sum, layer.at("dev_k_sum"), tolerance);
    const auto& overlap = result.ranks[l].with_check;
    CheckOptional(overlap ? std::optional(overlap->share) : std::nullopt,
                  layer.at("overlap_with_check_layer"));
    CheckOptional(overlap ? std::optional(overlap->jaccard) : std::nullopt,
                  layer.at("jaccard_with_check_layer"));
    CheckOptional(result.ranks[l].spearman_prev, layer.at("spearman_with_prev_layer"),
                  SpearmanTolerance(expected));
    run.Checked();
  }
}

void CheckCurve(const blend::Result& result, const json& expected, bool with_attention, Run& run) {
  const double sums = expected.at("tolerances").at("sums_rel");
  const double attention = expected.at("tolerances").at("attn_rel");
  REQUIRE(result.curve.size() == expected.at("curve").size());
  for (size_t p = 0; p < result.curve.size(); ++p) {
    const json& point = expected["curve"][p];
    INFO("ratio " << point.at("ratio"));
    CHECK(result.curve[p].selection.topk == point.at("topk").get<uint64_t>());
    REQUIRE(result.curve[p].layers.size() == point.at("layers").size());
    for (size_t i = 0; i < point["layers"].size(); ++i) {
      const json& layer = point["layers"][i];
      const blend::CurveLayer& got = result.curve[p].layers[i];
      CHECK(got.layer == layer.at("layer").get<uint32_t>());
      CheckNear(got.v_sum, layer.at("dev_v_remaining"), sums);
      CheckNear(got.k_sum, layer.at("dev_k_remaining"), sums);
      CheckNear(got.selected.v, layer.at("dev_v_remaining_frac"), sums);
      CheckNear(got.selected.k, layer.at("dev_k_remaining_frac"), sums);
      if (with_attention) {
        REQUIRE(got.attention);
        CheckNear(got.attention->dev_l2, layer.at("attn_dev_l2"), attention);
        CheckNear(got.attention->out_rel_l2, layer.at("attn_out_rel_l2"), attention);
        CheckNear(got.attention->out_cos_mean, layer.at("attn_out_cos_mean"), attention);
      }
      run.Checked();
    }
  }
}

void CheckLeak(const blend::Result& result, const json& expected, Run& run) {
  const json& leak = expected.at("mask_leak");
  const Indices queries = leak.at("queries");
  CHECK(result.selection.indices == queries);
  CHECK(blend::ExtraKeys(queries, result.tokens) == leak.at("extra_keys").get<Indices>());
  const double attention = expected.at("tolerances").at("attn_rel");
  bool found = false;
  for (const blend::LayerLeak& layer : result.leaks) {
    if (layer.layer != leak.at("layer").get<uint32_t>()) continue;
    found = true;
    CheckNear(layer.error.leaked_mass_mean, leak.at("leaked_mass_mean"), attention);
    CheckNear(layer.error.leak_out_rel_l2, leak.at("attn_out_rel_l2_leak_vs_exact"), attention);
  }
  CHECK(found);
  run.Checked();
}

blend::Request RequestOf(const json& expected) {
  blend::Request request;
  request.check_layer = expected.at("check_layer");
  request.ratio = expected.at("ratio");
  request.suffix = expected.at("suffix_len");
  for (const json& point : expected.at("curve")) request.ratios.push_back(point.at("ratio"));
  return request;
}

void CheckReplayOf(const blend::OldCache& old, const std::shared_ptr<const Snapshot>& full,
                   const AttentionTrace& trace, const json& expected, Run& run) {
  Rope rope;
  rope.pairs = ParsePairs(expected.at("style").get<std::string>());
  rope.theta = expected.at("theta");
  blend::FullCache whole = blend::WholePrompt(full, {});
  blend::RequireSamePrompt(whole, old, std::nullopt);
  const blend::CachePair caches(std::move(whole), old, rope);
  ThreadPool pool(2);
  const blend::Request request = RequestOf(expected);
  const blend::Result result = blend::Replay(caches, &trace, request, pool, nullptr);
  CHECK(result.selection.topk == expected.at("topk").get<uint64_t>());
  CHECK(result.selection.indices == expected.at("hkvd").get<Indices>());
  CHECK(result.warnings.empty());
  run.Checked();
  CheckLayers(result, expected, run);
  CheckCurve(result, expected, true, run);
  CheckLeak(result, expected, run);
  blend::Request lmcache = request;
  lmcache.engine = blend::Engine::kLmCache;
  lmcache.score = blend::ScoreRule::kK;
  CHECK(blend::Replay(caches, nullptr, lmcache, pool, nullptr).selection.indices ==
        expected.at("hkvd_lmcache_k").get<Indices>());
  run.Checked();
}

// Checks a cache compared with itself: there is no deviation at any ratio.
void CheckSelf(const std::shared_ptr<const Snapshot>& full, const AttentionTrace& trace,
               const json& expected, Run& run) {
  const blend::OldCache old = blend::SplitOld(full, expected.at("chunks"), blend::BosRule::kNone,
                                              {blend::KeyState::kGlobal, {}});
  const blend::CachePair caches(blend::WholePrompt(full, {}), old, std::nullopt);
  ThreadPool pool(1);
  const blend::Result result = blend::Replay(caches, &trace, RequestOf(expected), pool, nullptr);
  for (const blend::LayerDeviation& layer : result.layers) {
    CHECK(layer.v.sum == 0);
    CHECK(layer.k.sum == 0);
  }
  for (const blend::CurvePoint& point : result.curve) {
    for (const blend::CurveLayer& layer : point.layers) {
      CHECK(layer.v_sum == 0);
      CHECK(layer.selected.k == 0);
      REQUIRE(layer.attention);
      CHECK(layer.attention->dev_l2 == 0);
      CHECK(layer.attention->out_rel_l2 == 0);
      CHECK(layer.attention->out_cos_mean == 1);
    }
  }
  run.Checked();
}

}  // namespace

void CheckBlendReplay(Run& run) {
  const json manifest = run.Json("blend/manifest.json");
  for (const json& item : manifest.value("replay", json::array())) {
    INFO(item.at("name"));
    const json& files = item.at("files");
    const json& expected = item.at("expect");
    const auto full_path = run.File("blend/" + files.at("full").get<std::string>());
    if (!full_path) continue;
    const uint32_t heads = expected.at("kv_heads");
    const auto full = Open(*full_path, "thd", heads);
    const Tensors tensors(*full_path);
    const AttentionTrace trace = TraceOf(tensors, expected);
    std::vector<std::shared_ptr<const Snapshot>> chunks;
    for (const json& name : files.at("chunks")) {
      const auto path = run.File("blend/" + name.get<std::string>());
      if (path) chunks.push_back(Open(*path, "thd", heads));
    }
    if (chunks.size() == files.at("chunks").size()) {
      CheckReplayOf(blend::JoinChunks(chunks, blend::BosRule::kNone, {}), full, trace, expected,
                    run);
    }
    const auto unrotated = run.File("blend/" + files.at("old_unrotated").get<std::string>());
    if (unrotated) {
      CheckReplayOf(blend::SplitOld(Open(*unrotated, "", heads), expected.at("chunks"),
                                    blend::BosRule::kNone, {blend::KeyState::kUnrotated, {}}),
                    full, trace, expected, run);
    }
    CheckSelf(full, trace, expected, run);
  }
}

}  // namespace kv::golden
