// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Policies through kvtool.h, on a cache that this program keeps and compacts, against the replay's
// own plans for the same rows. Linked with the library's insides.
#include <catch2/catch.hpp>
#include <cstring>
#include <optional>
#include <random>
#include <set>

#include "lib/api/kvtool_study.hpp"
#include "lib/core/snapshot/layout.h"
#include "lib/study/eviction/budget.h"
#include "lib/study/eviction/rule.h"

namespace {

constexpr uint32_t kQueryHeads = 4, kKvHeads = 2, kDim = 16;
// The policy `block` always keeps fewer tokens than these.
constexpr uint64_t kPrompt = 400, kTokens = 560;
constexpr uint32_t kLayers = 6, kLayer = 1;
constexpr kvt_geometry kGeometry = {sizeof(kvt_geometry), kLayers, kQueryHeads, kKvHeads, kDim, 4};

struct Model {
  std::vector<float> queries, keys;  // [token][head][dim]

  Model() : queries(kTokens * kQueryHeads * kDim), keys(kTokens * kKvHeads * kDim) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (float& value : queries) value = normal(random);
    for (float& value : keys) value = normal(random);
  }
};

// One step of the comparison: an eviction, and the number of tokens that the caller asks for.
struct Step {
  kv::eviction::Eviction eviction;
  uint64_t asked = 0;
};
std::vector<Step> Steps(const kv::eviction::PolicyInfo& policy) {
  using kv::eviction::Spending;
  std::vector<Step> steps;
  std::optional<uint64_t> beyond;  // pyramid only: the first layers keep more than the mean
  uint64_t length = 0;
  for (uint64_t token = 0; token < kTokens; ++token) {
    ++length;
    if (token + 1 < kPrompt || (token + 1 - kPrompt) % 45 != 0) continue;
    const uint64_t asked = length * 3 / 4;
    uint64_t kept = asked;
    if (policy.spending == Spending::kNone) kept = length;
    if (policy.spending == Spending::kWholeBlocks) {
      kept = kv::eviction::ComputeBlockBudget(kv::eviction::Sanitised({}), length, asked).quantised;
    }
    if (policy.spending == Spending::kPyramid) {
      if (!beyond) {
        beyond = *kv::eviction::PyramidBudget({}, {true, kLayer, kLayers}, asked, length) - asked;
        CHECK(*beyond > 0);
      }
      kept = std::min(length, asked + *beyond);
    }
    steps.push_back({{token, length, kept}, asked});
    length = kept;
  }
  return steps;
}

// Returns the positions that each head holds at the end, according to the replay.
std::vector<std::set<uint32_t>> Replayed(const Model& model,
                                         const kv::eviction::PolicyInfo& policy) {
  kv::AttentionTrace trace;
  trace.query_heads = kQueryHeads;
  trace.kv_heads = kKvHeads;
  trace.head_dim = kDim;
  trace.rows = kTokens;
  kv::TraceLayer& rows = trace.layers.emplace_back();
  rows.layer = kLayer;
  rows.queries = kv::ContiguousView(kv::DType::kF32, {kTokens, kQueryHeads, kDim},
                                    reinterpret_cast<const std::byte*>(model.queries.data()));
  kv::LayerKv layer;
  layer.index = kLayer;
  layer.k =
      kv::ContiguousTensor(reinterpret_cast<const std::byte*>(model.keys.data()), kv::DType::kF32,
                           kTokens, kKvHeads, kDim, kv::Order::kTokenHeadDim);
  const kv::LayerAttention attention(trace, trace.layers[0], layer);
  kv::eviction::PolicyOptions options;
  kv::eviction::LayerSchedule schedule;
  schedule.layer = kLayer;
  schedule.in_range = true;
  for (const Step& step : Steps(policy)) {
    const kv::eviction::Eviction& eviction = step.eviction;
    if (eviction.kept < eviction.length_before) schedule.evictions.push_back(eviction);
  }
  options.config = kv::eviction::Sanitised({});
  options.on_budget = policy.spending == kv::eviction::Spending::kWholeBlocks;
  kv::ThreadPool pool(1);
  const kv::eviction::PlanJob job{&policy, &options, &schedule};
  const kv::eviction::LayerPlan plan =
      kv::eviction::PlanLayer(attention, kPrompt, {&job, 1}, pool)[0];
  std::vector<std::set<uint32_t>> held(kKvHeads);
  for (uint32_t head = 0; head < kKvHeads; ++head) {
    for (uint32_t position = 0; position < kTokens; ++position) {
      if (plan.last_seen(plan.units == 1 ? 0 : head, position) == kv::eviction::LayerPlan::kStays) {
        held[head].insert(position);
      }
    }
  }
  return held;
}

// An engine's cache: rows of all kv heads, each compacted by its own plan.
struct Cache {
  std::vector<float> keys;  // [slot][kv head][dim]
  std::vector<std::vector<uint32_t>> positions{kKvHeads};

  size_t size() const { return positions[0].size(); }
  void Append(const Model& model, uint64_t token) {
    keys.insert(keys.end(), &model.keys[token * kKvHeads * kDim],
                &model.keys[token * kKvHeads * kDim] + kKvHeads * kDim);
    for (auto& of_head : positions) of_head.push_back(static_cast<uint32_t>(token));
  }
  void Apply(const kvt_plan* plans, size_t count, uint64_t keep) {
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      const kvt_plan& plan = plans[count == 1 ? 0 : head];
      size_t to = 0;
      for (size_t r = 0; r < plan.count; ++r) {
        for (uint32_t slot = plan.ranges[r].begin;
             slot < plan.ranges[r].begin + plan.ranges[r].count; ++slot, ++to) {
          std::copy_n(&keys[(slot * kKvHeads + head) * kDim], kDim,
                      &keys[(to * kKvHeads + head) * kDim]);
          positions[head][to] = positions[head][slot];
        }
      }
      REQUIRE(to == keep);
      positions[head].resize(keep);
    }
    keys.resize(keep * kKvHeads * kDim);
  }
  kvt_scores Scores(const Model& model, uint64_t last_token, uint64_t rows) const {
    kvt_scores scores = {};
    scores.struct_size = sizeof scores;
    scores.key_dtype = KVT_F32;
    scores.geometry = &kGeometry;
    scores.queries = &model.queries[(last_token + 1 - rows) * kQueryHeads * kDim];
    scores.rows = rows;
    scores.keys = keys.data();
    scores.tokens = size();
    scores.visible = size() - rows + 1;
    scores.key_token_stride = kKvHeads * kDim * sizeof(float);
    scores.key_head_stride = kDim * sizeof(float);
    return scores;
  }
};

struct Context {
  Context() { REQUIRE(kvt_ctx_create(nullptr, &ctx) == 0); }
  ~Context() { kvt_ctx_free(ctx); }
  kvt_ctx* ctx = nullptr;
};

TEST_CASE("Every policy chooses as the program's replay does") {
  const Model model;
  const Context context;
  size_t offered = 0;
  kvt_policy_info info = {};
  info.struct_size = sizeof info;
  for (; kvt_policy_at(offered, &info) == 0; ++offered) {
    INFO(info.name);
    CHECK(std::strlen(info.summary) > 10);
    kvt_policy* policy = nullptr;
    REQUIRE(kvt_policy_create(context.ctx, info.name, &kGeometry, kLayer, &policy) == 0);
    Cache cache;
    uint64_t token = 0;
    for (const auto& [eviction, asked] : Steps(*kv::eviction::FindPolicy(info.name))) {
      const uint64_t first = token;
      for (; token <= eviction.token; ++token) cache.Append(model, token);
      REQUIRE(cache.size() == eviction.length_before);
      const kvt_scores scores = cache.Scores(model, token - 1, token - first);
      REQUIRE(kvt_policy_observe(policy, &scores) == 0);
      const kvt_plan* plans = nullptr;
      size_t count = 0;
      REQUIRE(kvt_policy_choose(policy, &scores, asked, &plans, &count) == 0);
      CHECK((count == 1 || count == kKvHeads));
      cache.Apply(plans, count, eviction.kept);
    }
    for (; token < kTokens; ++token) cache.Append(model, token);
    const auto replayed = Replayed(model, *kv::eviction::FindPolicy(info.name));
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      CHECK(std::set<uint32_t>(cache.positions[head].begin(), cache.positions[head].end()) ==
            replayed[head]);
    }
    kvt_policy_free(policy);
  }
  CHECK(offered >= 11);
}

TEST_CASE("kvtool.hpp lists the policies that it makes") {
  const kvtool::Context context;
  const std::vector<kvt_policy_info> policies = kvtool::Policies();
  CHECK(policies.size() >= 11);
  for (const kvt_policy_info& info : policies) {
    CHECK_NOTHROW(kvtool::Policy(context, info.name, kGeometry, 0));
  }
  CHECK_THROWS_AS(kvtool::Policy(context, "oracle-mass", kGeometry, 0), kvtool::Error);
}

TEST_CASE("Misuse of a policy is refused") {
  const Model model;
  const Context context;
  kvt_policy* policy = nullptr;
  CHECK(kvt_policy_create(context.ctx, "oracle-mass", &kGeometry, 0, &policy) ==
        KVT_E_UNSUPPORTED_KIND);
  CHECK(kvt_policy_create(context.ctx, "pyramid", &kGeometry, kLayers, &policy) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_policy_create(context.ctx, "no such", &kGeometry, 0, &policy) == KVT_E_BAD_ARGUMENT);
  kvt_geometry odd = kGeometry;
  odd.query_heads = 3;
  CHECK(kvt_policy_create(context.ctx, "h2o", &odd, 0, &policy) == KVT_E_BAD_ARGUMENT);
  REQUIRE(kvt_policy_create(context.ctx, "h2o", &kGeometry, 0, &policy) == 0);
  Cache cache;
  for (uint64_t token = 0; token < 20; ++token) cache.Append(model, token);
  const kvt_scores rows = cache.Scores(model, 19, 20);
  const kvt_plan* plans = nullptr;
  size_t count = 0;
  CHECK(kvt_policy_choose(policy, &rows, 10, &plans, &count) ==
        KVT_E_BAD_ARGUMENT);  // nothing was observed
  for (const auto& spoil : std::vector<std::function<void(kvt_scores&)>>{
           [](kvt_scores& s) { s.struct_size = 8; }, [](kvt_scores& s) { s.tokens = 0; },
           [](kvt_scores& s) { s.tokens = UINT64_MAX; }, [](kvt_scores& s) { s.queries = nullptr; },
           [](kvt_scores& s) { s.keys = nullptr; }, [](kvt_scores& s) { s.rows = 21; },
           [](kvt_scores& s) { s.visible = 3; }, [](kvt_scores& s) { s.key_dtype = KVT_I8; },
           // The described keys would extend past the end of the address space.
           [](kvt_scores& s) { s.key_token_stride = SIZE_MAX / 4; },
           [](kvt_scores& s) { s.key_head_stride = SIZE_MAX - 8; },
           [](kvt_scores& s) { s.keys = reinterpret_cast<const void*>(UINTPTR_MAX - 64); },
           [](kvt_scores& s) { s.queries = reinterpret_cast<const float*>(UINTPTR_MAX - 63); }}) {
    kvt_scores wrong = rows;
    spoil(wrong);
    CHECK(kvt_policy_observe(policy, &wrong) == KVT_E_BAD_ARGUMENT);
  }
  REQUIRE(kvt_policy_observe(policy, &rows) == 0);
  CHECK(kvt_policy_observe(policy, &rows) == KVT_E_BAD_ARGUMENT);  // these rows were shown before
  CHECK(kvt_policy_choose(policy, &rows, 0, &plans, &count) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_policy_choose(policy, &rows, 21, &plans, &count) == KVT_E_BAD_ARGUMENT);
  REQUIRE(kvt_policy_choose(policy, &rows, 20, &plans, &count) == 0);
  CHECK((count == 1 && plans[0].count == 1 && plans[0].ranges[0].count == 20));
  REQUIRE(kvt_policy_choose(policy, &rows, 10, &plans, &count) == 0);
  CHECK(count == kKvHeads);
  kvt_scores shorter = rows;
  shorter.tokens = 9;
  CHECK(kvt_policy_choose(policy, &shorter, 5, &plans, &count) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_policy_observe(nullptr, &rows) == KVT_E_BAD_ARGUMENT);
  kvt_policy_free(policy);
  kvt_policy_free(nullptr);
}

}  // namespace
