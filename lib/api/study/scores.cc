// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/api/study/scores.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/core/base/checked.h"
#include "lib/study/dense/score.h"

namespace kv::api {
namespace {

constexpr std::string_view kTooLarge = "scores: the sizes overflow";

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

}  // namespace

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

}  // namespace kv::api

kvt_status kvt_block_scores(kvt_ctx* ctx, const kvt_scores* in, float* sums, size_t blocks) {
  using namespace kv;  // NOLINT: the library's outermost layer
  return api::Call(ctx, [&] {
    api::Require(sums != nullptr, "sums");
    const kvt_scores whole = api::Whole(in, "scores->struct_size");
    in = &whole;
    const kvt_geometry g = api::Whole(in->geometry, "scores->geometry->struct_size");
    api::Check(*in, g, sums, blocks);
    const size_t stride = size_t{g.query_heads} * g.head_dim, group = g.query_heads / g.kv_heads;
    std::fill_n(sums, blocks, 0.0f);
    std::vector<float> scratch(BlockSumScratchFloats(g.head_dim, in->tokens));
    // Tile by tile and head by head, always in this order, so that the sums are the same on every
    // machine.
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
        tile.keys = {keys, api::FindKeyType(in->key_dtype), in->key_token_stride, in->tokens,
                     g.head_dim};
        tile.scale = in->scale != 0 ? in->scale : 1 / std::sqrt(static_cast<float>(g.head_dim));
        AddTileBlockSums(tile, in->block_tokens, nullptr, scratch.data(), sums);
      }
    }
  });
}
