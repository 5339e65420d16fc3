// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "lib/api/context.h"
#include "lib/api/kvtool_study.h"
#include "lib/core/base/bytes.h"
#include "lib/study/dense/score.h"
#include "lib/study/eviction/block_choice.h"
#include "lib/study/eviction/budget.h"
#include "lib/study/eviction/rule.h"

// Runs a policy of lib/study/eviction on the cache of one layer, which belongs to the caller: the
// rules see a trace with the last rows, and a snapshot with the latest keys.
struct kvt_policy {
  using Rule = kv::eviction::Rule;

  kvt_policy(kvt_ctx* context, const kv::eviction::PolicyInfo& policy, const kvt_geometry& sizes,
             uint32_t layer_number)
      : ctx(context), info(policy), geometry(sizes) {
    trace.query_heads = sizes.query_heads;
    trace.kv_heads = sizes.kv_heads;
    trace.head_dim = sizes.head_dim;
    layer.index = rows.layer = layer_number;
    layer.k.heads = sizes.kv_heads;
    layer.k.head_dim = sizes.head_dim;
    // Rows of the prompt count, as with a budget; snapkv looks again at each choice.
    options.on_budget = info.spending == kv::eviction::Spending::kWholeBlocks;
    options.config = kv::eviction::Sanitised({});
  }

  kvt_ctx* const ctx;
  const kv::eviction::PolicyInfo& info;
  const kvt_geometry geometry;
  uint64_t positions = 0;      // tokens that the cache ever held
  uint64_t rows_end = 0;       // position after the last row
  std::vector<float> queries;  // queries of the last rows, [row][query head][dim]

  // The layer as the rules see it. These objects refer to one another.
  kv::AttentionTrace trace;
  kv::TraceLayer rows;
  kv::LayerKv layer;
  kv::eviction::PolicyOptions options;
  kv::eviction::LayerSchedule schedule;
  std::optional<kv::ThreadPool> own_thread;
  std::optional<kv::LayerAttention> attention;
  std::optional<kv::eviction::LayerCaches> caches;
  std::unique_ptr<Rule> rule;
  float scale = 0;
  // pyramid: tokens that this layer keeps beyond the mean of all layers, fixed at the first choice.
  std::optional<int64_t> beyond_mean;

  bool failed = false;                         // true once a call failed midway
  std::vector<std::vector<kvt_range>> ranges;  // ranges of the plans lent to the caller
  std::vector<kvt_plan> plans;
};

namespace kv::api {
namespace {

using eviction::PolicyInfo;

constexpr std::string_view kTooLarge = "scores: the sizes overflow";

// Return the memory that the keys or the queries of `in` cover. Throw kBadArgument if that exceeds
// the address space.
ByteSpan SpanKeys(const kvt_scores& in, const kvt_geometry& geometry) {
  const uint64_t last_token = CheckedProduct(in.tokens - 1, in.key_token_stride, kTooLarge);
  const uint64_t last_head = CheckedProduct(geometry.kv_heads - 1, in.key_head_stride, kTooLarge);
  uint64_t bytes = uint64_t{geometry.head_dim} * (in.key_dtype == KVT_F32 ? 4 : 2);
  Require(!__builtin_add_overflow(bytes, last_token, &bytes) &&
              !__builtin_add_overflow(bytes, last_head, &bytes),
          kTooLarge);
  return Span(in.keys, bytes);
}

ByteSpan SpanQueries(const kvt_scores& in, const kvt_geometry& geometry) {
  const uint64_t row_bytes = uint64_t{geometry.query_heads} * geometry.head_dim * sizeof(float);
  return Span(static_cast<const void*>(in.queries), CheckedProduct(in.rows, row_bytes, kTooLarge));
}

KeyType FindKeyType(uint32_t dtype) {
  Require(dtype == KVT_F32 || dtype == KVT_F16 || dtype == KVT_BF16, "scores->key_dtype");
  return dtype == KVT_F32 ? KeyType::kF32 : dtype == KVT_F16 ? KeyType::kF16 : KeyType::kBF16;
}

void Check(const kvt_scores& in, const kvt_geometry& g, float* sums, size_t blocks) {
  constexpr uint32_t kMostHeads = 1 << 16, kMostDim = 1 << 16;
  Require(g.kv_heads > 0 && g.query_heads > 0 && g.query_heads <= kMostHeads &&
              g.query_heads % g.kv_heads == 0 && g.head_dim > 0 && g.head_dim <= kMostDim,
          "geometry");
  Require(in.queries != nullptr && in.keys != nullptr && in.rows > 0 && in.tokens > 0,
          "scores->queries, keys, rows, tokens");
  Require(in.block_tokens > 0 && in.visible > 0 && in.visible <= in.tokens,
          "scores->block_tokens, visible");
  Require(blocks == CeilDiv(in.tokens, in.block_tokens), "blocks");
  const std::span<std::byte> written =
      Span(static_cast<void*>(sums), CheckedProduct(blocks, sizeof *sums, kTooLarge));
  RequireApart(SpanQueries(in, g), written, "scores->queries and sums overlap");
  RequireApart(SpanKeys(in, g), written, "scores->keys and sums overlap");
}

// Returns true for policies that need no rows of the future.
bool IsOffered(const PolicyInfo& policy) { return !policy.is_bound; }

std::vector<const PolicyInfo*> Offered() {
  std::vector<const PolicyInfo*> offered;
  for (const PolicyInfo& policy : eviction::Policies()) {
    if (IsOffered(policy)) offered.push_back(&policy);
  }
  return offered;
}

uint32_t ListNeeds(const PolicyInfo& policy) {
  if (policy.needs_rows) return KVT_NEEDS_ROWS | KVT_NEEDS_KEYS;
  return policy.needs_keys ? KVT_NEEDS_KEYS : 0;
}

DType KeyDType(uint32_t dtype) {
  Require(dtype == KVT_F32 || dtype == KVT_F16 || dtype == KVT_BF16, "scores->key_dtype");
  return static_cast<DType>(dtype);
}

void CheckCache(const kvt_policy& policy, const kvt_scores& in, bool with_rows) {
  Require(!policy.failed, "policy: an earlier call failed");
  constexpr uint64_t kMostTokens = UINT32_MAX / 2;  // indices into a cache have 32 bits
  Require(in.tokens > 0 && in.tokens <= kMostTokens, "scores->tokens");
  const uint64_t held = policy.caches ? policy.caches->size() : 0;
  Require(in.tokens >= held && policy.positions + (in.tokens - held) <= kMostTokens,
          "scores->tokens: differs from what the last plan left");
  if (ListNeeds(policy.info) != 0) {
    Require(in.keys != nullptr, "scores->keys");
    KeyDType(in.key_dtype);
    SpanKeys(in, policy.geometry);
    if (policy.attention) {
      Require(KeyDType(in.key_dtype) == policy.layer.k.dtype && in.scale == policy.scale,
              "scores->key_dtype, scale: differ from the first call");
    }
  }
  if (!with_rows) return;
  Require(in.queries != nullptr && in.rows > 0 && in.rows <= in.tokens - held, "scores->rows");
  Require(in.visible == in.tokens - in.rows + 1,
          "scores->visible: rows must be those of the last tokens");
  SpanQueries(in, policy.geometry);
}

// Number of rows that a rule may ask for again.
constexpr uint64_t kRowsKept = 64;

void TakeRows(kvt_policy& policy, const kvt_scores& in) {
  const size_t row = size_t{policy.geometry.query_heads} * policy.geometry.head_dim;
  const uint64_t first = policy.positions - in.rows;
  std::vector<float>& held = policy.queries;
  // Rows that do not continue the last ones replace them.
  if (policy.rows_end != first) held.clear();
  const uint64_t before = std::min<uint64_t>(held.size() / row, kRowsKept);
  held.erase(held.begin(), held.end() - static_cast<std::ptrdiff_t>(before * row));
  held.insert(held.end(), in.queries, in.queries + in.rows * row);
  policy.rows_end = policy.positions;
  policy.trace.q_start = first - before;
  policy.trace.rows = before + in.rows;
  policy.rows.queries = ContiguousView(
      DType::kF32, {policy.trace.rows, policy.geometry.query_heads, policy.geometry.head_dim},
      reinterpret_cast<const std::byte*>(held.data()));
}

// Takes over the tokens that were appended to the caller's cache.
void Append(kvt_policy& policy, const kvt_scores& in, bool with_rows) {
  const uint64_t held = policy.caches ? policy.caches->size() : 0;
  policy.positions += in.tokens - held;
  // The token at position p is at index p - (positions - tokens) of the cache, which is at least 0
  // for all new ones. The address of position 0 may be outside the cache, but it is never read.
  StridedPiece piece;
  const uint64_t gone = policy.positions - in.tokens;
  piece.data = reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(in.keys) -
                                                  gone * in.key_token_stride);
  piece.tokens = policy.positions;
  piece.token.step = in.key_token_stride;
  piece.head.step = in.key_head_stride;
  piece.dim.step = in.key_dtype == KVT_F32 ? 4 : 2;
  policy.layer.k.pieces = {piece};
  if (with_rows) TakeRows(policy, in);
  if (!policy.caches) {
    policy.layer.k.dtype = ListNeeds(policy.info) == 0 ? DType::kF16 : KeyDType(in.key_dtype);
    policy.scale = in.scale;
    policy.trace.scale = static_cast<double>(in.scale);
    policy.attention.emplace(policy.trace, policy.rows, policy.layer);
    ThreadPool* pool = FindPool(policy.ctx);
    if (pool == nullptr) pool = &policy.own_thread.emplace(1);
    policy.caches.emplace(eviction::LayerCaches{*policy.attention, &*pool, nullptr, {}});
    for (uint32_t head = 0; head < policy.geometry.kv_heads; ++head) {
      policy.caches->of_head.emplace_back(*policy.attention, head, policy.info.needs_rows);
    }
    if (policy.info.make != nullptr) {
      policy.rule = policy.info.make({policy.options, policy.schedule, *policy.caches});
    }
  }
  for (KeptKeys& keys : policy.caches->of_head) keys.AppendUpTo(policy.positions);
}

// Returns how many tokens of a cache of `length` this policy keeps in this layer if `keep` are
// requested.
uint64_t KeptBy(kvt_policy& policy, uint64_t length, uint64_t keep) {
  switch (policy.info.spending) {
    case eviction::Spending::kTokens:
      return keep;
    case eviction::Spending::kNone:
      return length;
    case eviction::Spending::kWholeBlocks:
      return eviction::ComputeBlockBudget(policy.options.config, length, keep).quantised;
    case eviction::Spending::kPyramid:
      break;
  }
  if (!policy.beyond_mean) {
    const eviction::LayerPlace place{true, policy.layer.index, policy.geometry.layers};
    const auto own = eviction::PyramidBudget(policy.options.paper, place, keep, length);
    policy.beyond_mean = own ? static_cast<int64_t>(*own) - static_cast<int64_t>(keep) : 0;
  }
  const int64_t wanted = static_cast<int64_t>(keep) + *policy.beyond_mean;
  return static_cast<uint64_t>(std::clamp<int64_t>(wanted, 1, static_cast<int64_t>(length)));
}

void ExposePlan(kvt_policy& policy, const std::vector<KeepPlan>& chosen) {
  policy.ranges.assign(chosen.size(), {});
  policy.plans.clear();
  for (size_t unit = 0; unit < chosen.size(); ++unit) {
    for (const KeepRange& range : chosen[unit]) {
      policy.ranges[unit].push_back({sizeof(kvt_range), range.begin, range.count});
    }
    policy.plans.push_back(
        {sizeof(kvt_plan), 0, policy.ranges[unit].data(), policy.ranges[unit].size()});
  }
}

}  // namespace
}  // namespace kv::api

using namespace kv;       // NOLINT: the functions below are the library's outermost layer
using namespace kv::api;  // NOLINT

kvt_status kvt_policy_at(size_t index, kvt_policy_info* out) {
  return Caught(nullptr, [&] {
    RequireSize(out, "out->struct_size");
    const std::vector<const PolicyInfo*> offered = Offered();
    Require(index < offered.size(), "index");
    kvt_policy_info info = {};
    info.needs = ListNeeds(*offered[index]);
    // Null-terminated: the texts are literals.
    info.name = offered[index]->name.data();
    info.summary = offered[index]->summary.data();
    Fill(out, info);
  });
}

kvt_status kvt_policy_create(kvt_ctx* ctx, const char* name, const kvt_geometry* geometry,
                             uint32_t layer, kvt_policy** out) {
  return CallToMake(ctx, out, [&] {
    Require(name != nullptr, "name");
    const kvt_geometry whole = Whole(geometry, "geometry->struct_size");
    geometry = &whole;
    constexpr uint32_t kMostHeads = 1 << 16, kMostDim = 1 << 16;
    Require(geometry->kv_heads > 0 && geometry->query_heads > 0 &&
                geometry->query_heads <= kMostHeads &&
                geometry->query_heads % geometry->kv_heads == 0 && geometry->head_dim > 0 &&
                geometry->head_dim <= kMostDim,
            "geometry");
    const PolicyInfo* policy = eviction::FindPolicy(name);
    Require(policy != nullptr, "name: there is no such policy");
    if (!IsOffered(*policy)) {
      throw Error(Finding::kUnsupportedKind,
                  "the policy needs the attention of later tokens, which only a replay of a "
                  "recorded run has");
    }
    Require(policy->spending != eviction::Spending::kPyramid || layer < geometry->layers,
            "layer: not below geometry->layers");
    return std::make_unique<kvt_policy>(ctx, *policy, *geometry, layer);
  });
}

void kvt_policy_free(kvt_policy* policy) { delete policy; }

kvt_status kvt_policy_observe(kvt_policy* policy, const kvt_scores* rows) {
  return CallOn(policy, [&] {
    const kvt_scores whole = Whole(rows, "rows->struct_size");
    rows = &whole;
    const bool with_rows = policy->info.needs_rows;
    CheckCache(*policy, *rows, with_rows);
    policy->failed = true;
    Append(*policy, *rows, with_rows);
    if (with_rows) {
      policy->rule->Observe(*policy->caches, policy->positions - rows->rows, policy->positions);
    }
    policy->ctx->state.Commit();
    policy->failed = false;
  });
}

kvt_status kvt_policy_choose(kvt_policy* policy, const kvt_scores* cache, uint64_t keep,
                             const kvt_plan** plans, size_t* count) {
  return CallOn(policy, [&] {
    Require(plans != nullptr && count != nullptr, "plans, count");
    const kvt_scores whole = Whole(cache, "cache->struct_size");
    cache = &whole;
    CheckCache(*policy, *cache, false);
    Require(keep > 0 && keep <= cache->tokens, "keep");
    const uint64_t held = policy->caches ? policy->caches->size() : 0;
    Require(!policy->info.needs_rows ||
                (cache->tokens == held && policy->rows_end == policy->positions),
            "cache: its last rows were not observed");
    policy->failed = true;
    Append(*policy, *cache, false);
    std::vector<KeepPlan> chosen;
    keep = KeptBy(*policy, cache->tokens, keep);
    if (keep >= cache->tokens) {
      chosen = {{{0, static_cast<uint32_t>(cache->tokens)}}};
    } else {
      chosen = policy->rule->Choose(*policy->caches, policy->positions - 1, keep);
    }
    for (size_t head = 0; head < policy->caches->of_head.size(); ++head) {
      policy->caches->of_head[head].Compact(chosen[chosen.size() == 1 ? 0 : head]);
    }
    ExposePlan(*policy, chosen);
    policy->ctx->state.Commit();
    *plans = policy->plans.data();
    *count = policy->plans.size();
    policy->failed = false;
  });
}

kvt_status kvt_block_scores(kvt_ctx* ctx, const kvt_scores* in, float* sums, size_t blocks) {
  return Call(ctx, [&] {
    Require(sums != nullptr, "sums");
    const kvt_scores whole = Whole(in, "scores->struct_size");
    in = &whole;
    const kvt_geometry g = Whole(in->geometry, "scores->geometry->struct_size");
    Check(*in, g, sums, blocks);
    const size_t stride = size_t{g.query_heads} * g.head_dim, group = g.query_heads / g.kv_heads;
    std::fill_n(sums, blocks, 0.0f);
    std::vector<float> scratch(BlockSumScratchFloats(g.head_dim, in->tokens));
    // Sums tile by tile and head by head, always in this order, so that the sums are the same on
    // every machine.
    for (uint64_t first = 0; first < in->rows; first += kTileRows) {
      ctx->state.StopIfCancelled();
      for (size_t head = 0; head < g.query_heads; ++head) {
        const auto* keys =
            static_cast<const std::byte*>(in->keys) + head / group * in->key_head_stride;
        ScoreTile tile;
        tile.queries = in->queries + first * stride + head * g.head_dim;
        tile.query_stride = stride;
        tile.rows = std::min<uint64_t>(kTileRows, in->rows - first);
        tile.visible = std::min<uint64_t>(in->visible + first, in->tokens);
        tile.keys = {keys, FindKeyType(in->key_dtype), in->key_token_stride, in->tokens,
                     g.head_dim};
        tile.scale = in->scale != 0 ? in->scale : 1 / std::sqrt(static_cast<float>(g.head_dim));
        AddTileBlockSums(tile, in->block_tokens, nullptr, scratch.data(), sums);
      }
    }
  });
}
