// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/replay.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "tests/support/blend_case.h"
#include "tests/support/targets.h"

namespace kv::blend::replay_test {
namespace {

using test::BlendCase;
using test::MakeBlendCase;

Request RequestFor(uint64_t suffix) {
  Request request;
  request.ratio = 0.2;
  request.ratios = {0, 0.1, 0.2, 0.5, 1};
  request.suffix = suffix;
  return request;
}

Result Run(const BlendCase& made, const OldCache& old, const Request& request, int threads = 1) {
  const CachePair caches(WholePrompt(made.full, {}), old, made.rope);
  ThreadPool pool(threads);
  return Replay(caches, &made.trace, request, pool, nullptr);
}

OldCache Chunked(const BlendCase& made) { return JoinChunks(made.chunks, BosRule::kNone, {}); }

bool HasFault(const Result& result, const std::string& name) {
  for (const Fault& fault : result.faults) {
    if (fault.name == name) return true;
  }
  return false;
}

void RequireEqual(const Result& a, const Result& b) {
  CHECK(a.selection.indices == b.selection.indices);
  REQUIRE(a.layers.size() == b.layers.size());
  for (size_t l = 0; l < a.layers.size(); ++l) {
    CHECK(a.layers[l].v.tokens == b.layers[l].v.tokens);
    CHECK(a.layers[l].k.tokens == b.layers[l].k.tokens);
    CHECK(a.layers[l].k.rel_p90 == b.layers[l].k.rel_p90);
  }
  for (size_t p = 0; p < a.curve.size(); ++p) {
    for (size_t i = 0; i < a.curve[p].layers.size(); ++i) {
      CHECK(a.curve[p].layers[i].v_sum == b.curve[p].layers[i].v_sum);
      CHECK(a.curve[p].layers[i].attention->dev_l2 == b.curve[p].layers[i].attention->dev_l2);
      CHECK(a.curve[p].layers[i].attention->out_rel_l2 ==
            b.curve[p].layers[i].attention->out_rel_l2);
    }
  }
  for (size_t i = 0; i < a.leaks.size(); ++i) {
    CHECK(a.leaks[i].error.leaked_mass_mean == b.leaks[i].error.leaked_mass_mean);
  }
}

TEST_CASE("the first layer and the first chunk deviate by nothing", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 1);
  const Result result = Run(*made, Chunked(*made), RequestFor(6));
  CHECK(result.layers[0].v.sum == 0);
  CHECK(result.layers[0].k.relative() < 1e-6);
  for (uint64_t t = 0; t < 5; ++t) CHECK(result.layers[2].v.tokens[t] == 0);
  CHECK(result.layers[1].v.sum > 1);
  CHECK(result.chunk_selected[0] == 0);
  CHECK(result.warnings.empty());
  CHECK(!result.ranks[0].with_check);
  CHECK(result.ranks[1].with_check->share == 1);
}

TEST_CASE("what is left falls with the ratio and is nothing at 1", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 2);
  const Result result = Run(*made, Chunked(*made), RequestFor(6));
  for (size_t i = 0; i < result.curve.front().layers.size(); ++i) {
    double before = INFINITY;
    for (const CurvePoint& point : result.curve) {
      const CurveLayer& layer = point.layers[i];
      CHECK(layer.selected.v <= before);
      before = layer.selected.v;
      // No choice is better than a layer's own best tokens.
      CHECK(layer.oracle.v <= layer.selected.v);
      CHECK(layer.oracle.v <= layer.random.v);
      CHECK(layer.oracle.v <= layer.first_of_chunk.v);
    }
    const CurveLayer& end = result.curve.back().layers[i];
    CHECK(end.v_sum == 0);
    CHECK(end.k_sum == 0);
    CHECK(end.random.v == 0);
    CHECK(end.attention->dev_l2 == 0);
    CHECK(end.attention->out_rel_l2 == 0);
    CHECK(end.attention->out_cos_mean == 1);
    CHECK(result.curve.front().layers[i].attention->dev_l2 > 0.01);
  }
  CHECK(result.curve.back().compute_share == 1);
  CHECK(result.curve.front().compute_share == Approx((2 + 2 * 6.0 / 48) / 4));
}

TEST_CASE("chunk files, joined unrotated keys and prompt positions say the same", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 3);
  const Result chunks = Run(*made, Chunked(*made), RequestFor(6));
  const Result joined =
      Run(*made, SplitOld(made->joined, made->lengths, BosRule::kNone, {}), RequestFor(6));
  CHECK(chunks.selection.indices == joined.selection.indices);
  for (size_t l = 0; l < chunks.layers.size(); ++l) {
    CHECK(chunks.layers[l].v.tokens == joined.layers[l].v.tokens);
    CHECK(chunks.layers[l].k.sum == Approx(joined.layers[l].k.sum).margin(1e-6));
  }
  CHECK(HasFault(joined, "double_rotation"));
  CHECK(!HasFault(chunks, "double_rotation"));
}

TEST_CASE("results are the same for every number of threads and every target", "[blend]") {
  const auto made = MakeBlendCase({5, 90, 70, 6}, 4, DType::kF16);
  const OldCache old = Chunked(*made);
  const Result once = Run(*made, old, RequestFor(6));
  RequireEqual(once, Run(*made, old, RequestFor(6), 5));
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    RequireEqual(once, Run(*made, old, RequestFor(6), 2));
  });
}

TEST_CASE("LMCache scores all tokens by K and forces none", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 5);
  Request request = RequestFor(6);
  request.engine = Engine::kLmCache;
  request.score = ScoreRule::kK;
  const Result result = Run(*made, Chunked(*made), request);
  CHECK(result.selection.topk == 9);  // 48 * 0.2
  CHECK(result.selection.indices.size() == 9);
  CHECK(result.curve.front().layers.front().layer == 1);  // the check layer itself is blended, too
  CHECK(result.curve.front().layers.front().selected.k == 1);
}

TEST_CASE("chunks may leave out the question", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 6);
  std::vector<std::shared_ptr<const Snapshot>> parts(made->chunks.begin(), made->chunks.end() - 1);
  const OldCache old = JoinChunks(parts, BosRule::kNone, {});
  const FullCache full = WholePrompt(made->full, {});
  CHECK_THROWS_AS(RequireSamePrompt(full, old, std::nullopt), Error);
  CHECK_THROWS_AS(RequireSamePrompt(full, old, 5), Error);
  RequireSamePrompt(full, old, 6);
  const Result part = Run(*made, old, RequestFor(6));
  const Result whole = Run(*made, Chunked(*made), RequestFor(6));
  CHECK(part.selection.indices == whole.selection.indices);
  CHECK(part.layers[2].v.tokens[45] == 0);
  CHECK(part.main().layers[0].v_sum == whole.main().layers[0].v_sum);
  CHECK(part.main().layers[0].attention->dev_l2 == whole.main().layers[0].attention->dev_l2);
}

TEST_CASE("faults of the original are named", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 7);
  const Result result = Run(*made, Chunked(*made), RequestFor(6));
  CHECK(HasFault(result, "future_keys"));
  CHECK(HasFault(result, "suffix_len_one"));
  CHECK(HasFault(Run(*made, Chunked(*made), RequestFor(0)), "suffix_len_zero"));
  Request first = RequestFor(6);
  first.check_layer = 0;
  CHECK(!Run(*made, Chunked(*made), first).warnings.empty());
}

TEST_CASE("requests that make no sense are refused", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 8);
  Request request = RequestFor(49);
  CHECK_THROWS_AS(Run(*made, Chunked(*made), request), Error);
  request = RequestFor(6);
  request.check_layer = 4;
  CHECK_THROWS_AS(Run(*made, Chunked(*made), request), Error);
  request.check_layer = 3;  // layer 3 is the last, so nothing follows it
  CHECK_THROWS_AS(Run(*made, Chunked(*made), request), Error);
  const CachePair same(WholePrompt(made->full, {}),
                       SplitOld(made->full, {}, BosRule::kNone, {KeyState::kGlobal, {}}),
                       std::nullopt);
  CHECK(same.covered() == 48);
  // Keys at local positions cannot be rotated without the frequencies.
  CHECK_THROWS_AS(CachePair(WholePrompt(made->full, {}), Chunked(*made), std::nullopt), Error);
}

TEST_CASE("keys that were not rotated as stated are found out in layer 0", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 9);
  const auto warned = [&](const OldCache& old, const std::string& fitting) {
    const Result result = Run(*made, old, RequestFor(6));
    REQUIRE(result.warnings.size() == 1);
    INFO(result.warnings[0]);
    CHECK(result.warnings[0].find("K of layer 0") == 0);
    CHECK(result.warnings[0].find(fitting) != std::string::npos);
  };
  warned(JoinChunks(made->chunks, BosRule::kNone, {KeyState::kGlobal, {}}), "--chunks-rope local");
  warned(JoinChunks(made->chunks, BosRule::kDropped, {}), "--chunks-rope local");
  warned(SplitOld(made->joined, made->lengths, BosRule::kNone, {KeyState::kLocal, {}}),
         "--chunks-rope unrotated");
  // If the chunks are swapped, V of layer 0 no longer matches.
  std::vector<std::shared_ptr<const Snapshot>> swapped = made->chunks;
  std::swap(swapped[1], swapped[2]);
  const Result result = Run(*made, JoinChunks(swapped, BosRule::kNone, {}), RequestFor(6));
  REQUIRE(result.warnings.size() == 1);
  CHECK(result.warnings[0].find("V of layer 0") == 0);
}

std::vector<float> Values(const Snapshot& snapshot, size_t layer, bool is_value) {
  const LayerKv& kv = snapshot.layers[layer];
  const KvTensor& tensor = is_value ? *kv.v : kv.k;
  return GatherFloats(tensor, 0, tensor.tokens(), Order::kTokenHeadDim);
}

TEST_CASE("the blended cache has the full run's bits where it was recomputed", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 11, DType::kBF16);
  const CachePair caches(WholePrompt(made->full, {}), Chunked(*made), made->rope);
  ThreadPool pool(2);
  const Result result = Replay(caches, nullptr, RequestFor(6), pool, nullptr);
  const Snapshot blended = BlendedCache(caches, result, pool);
  const uint64_t row = uint64_t{made->kv_heads} * made->dim;
  for (size_t layer = 0; layer < 4; ++layer) {
    for (const bool is_value : {false, true}) {
      const std::vector<float> full = Values(*made->full, layer, is_value);
      const std::vector<float> got = Values(blended, layer, is_value);
      std::vector<float> old(full.size());
      caches.ReadOld(layer, is_value, 0, caches.tokens(), old.data());
      for (uint64_t t = 0; t < caches.tokens(); ++t) {
        const auto& indices = result.selection.indices;
        const bool recomputed = layer <= 1 || std::binary_search(indices.begin(), indices.end(), t);
        const std::vector<float>& want = recomputed ? full : old;
        for (uint64_t d = 0; d < row; ++d) {
          const float rounded = BF16ToF32(F32ToBF16(want[t * row + d]));
          CHECK(got[t * row + d] == rounded);
        }
      }
    }
  }
}

TEST_CASE("a blended cache replayed again deviates by what was left", "[blend]") {
  const auto made = MakeBlendCase({5, 20, 17, 6}, 12);
  const CachePair caches(WholePrompt(made->full, {}), Chunked(*made), made->rope);
  ThreadPool pool(1);
  const Result result = Replay(caches, nullptr, RequestFor(6), pool, nullptr);
  const auto blended = std::make_shared<Snapshot>(BlendedCache(caches, result, pool));
  const Result again =
      Run(*made, SplitOld(blended, made->lengths, BosRule::kNone, {KeyState::kGlobal, {}}),
          RequestFor(6));
  for (const CurveLayer& layer : result.main().layers) {
    CHECK(again.layers[layer.layer].v.sum == Approx(layer.v_sum));
    CHECK(again.layers[layer.layer].k.sum == Approx(layer.k_sum));
  }
  CHECK(again.layers[1].v.sum == 0);
  // The warning: after the check layer no tokens are left to choose from.
  CHECK(again.warnings.size() == 1);
}

TEST_CASE("baselines choose as many tokens", "[blend]") {
  const std::vector<Chunk> chunks = {{"a", 0, 2}, {"b", 2, 4}, {"c", 6, 3}};
  CHECK(MakeFirstOfChunkOrder(chunks, 8) == std::vector<uint32_t>{0, 2, 6, 1, 3, 7, 4, 5});
  std::vector<uint32_t> random = RandomOrder(50, 1);
  CHECK(random != RandomOrder(50, 2));
  CHECK(random == RandomOrder(50, 1));
  std::sort(random.begin(), random.end());
  for (uint32_t i = 0; i < 50; ++i) CHECK(random[i] == i);
}

TEST_CASE("the mask shows keys of the future to all but the trailing run", "[blend]") {
  const std::vector<uint64_t> imp = {6, 9, 12, 57, 58, 59};
  CHECK(ExtraKeys(imp, 60) == std::vector<uint64_t>{48, 46, 44, 0, 0, 0});
  const auto made = MakeBlendCase({5, 20, 17, 6}, 10);
  Request request = RequestFor(6);
  const Result exact = Run(*made, Chunked(*made), request);
  request.mask = Mask::kBottomRight;
  const Result leaking = Run(*made, Chunked(*made), request);
  REQUIRE(exact.leaks.size() == 2);
  CHECK(exact.leaks[0].error.leaked_mass_mean > 0.01);
  CHECK(exact.leaks[0].error.leaked_mass_mean == leaking.leaks[0].error.leaked_mass_mean);
  CHECK(exact.leaks[0].error.against_full.out_rel_l2 <
        leaking.leaks[0].error.against_full.out_rel_l2);
}

}  // namespace
}  // namespace kv::blend::replay_test
