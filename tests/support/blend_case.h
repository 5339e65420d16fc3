// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/layout.h"
#include "lib/engines/cacheblend/replay.h"

namespace kv::test {

// A synthetic prompt of chunks: the full run, the chunks' own runs and the queries, in memory. Keys
// and values of layer 0 are the same in both; later layers deviate in all chunks but the first,
// most in their first tokens.
struct BlendCase {
  std::vector<uint64_t> lengths;
  uint32_t layers = 4, kv_heads = 2, query_heads = 4, dim = 16;
  DType dtype = DType::kF32;
  Rope rope;
  std::shared_ptr<Snapshot> full = std::make_shared<Snapshot>();
  std::vector<std::shared_ptr<const Snapshot>> chunks;              // with keys at local positions
  std::shared_ptr<Snapshot> joined = std::make_shared<Snapshot>();  // keys unrotated
  AttentionTrace trace;
  std::vector<std::unique_ptr<Bytes>> storage;

  uint64_t tokens() const {
    uint64_t sum = 0;
    for (const uint64_t length : lengths) sum += length;
    return sum;
  }
  std::byte* Keep(size_t bytes) {
    storage.push_back(std::make_unique<Bytes>(bytes));
    return storage.back()->data();
  }
  KvTensor Store(const std::vector<float>& values, uint64_t tokens, Order order) {
    const uint64_t row = uint64_t{kv_heads} * dim, width = Info(dtype).block_bytes;
    Bytes plain(tokens * row * width);
    FromFloats(dtype, std::span(values).first(tokens * row), plain.data());
    std::byte* bytes = Keep(plain.size());
    Reorder(plain, Order::kTokenHeadDim, {bytes, plain.size()}, order, tokens, kv_heads, dim,
            static_cast<uint32_t>(width));
    return ContiguousTensor(bytes, dtype, tokens, kv_heads, dim, order);
  }
};

inline std::vector<float> Rotated(const BlendCase& made, const std::vector<float>& keys,
                                  int64_t first) {
  std::vector<float> rotated = keys;
  const size_t row = size_t{made.kv_heads} * made.dim;
  std::vector<int64_t> positions(keys.size() / row);
  for (size_t t = 0; t < positions.size(); ++t) positions[t] = first + static_cast<int64_t>(t);
  const RopeTable table(made.rope, made.dim, positions);
  for (size_t t = 0; t < positions.size(); ++t) {
    table.Rotate(t, made.kv_heads, &rotated[t * row]);
  }
  return rotated;
}

inline std::unique_ptr<BlendCase> MakeBlendCase(std::vector<uint64_t> lengths, uint32_t seed,
                                                DType dtype = DType::kF32) {
  auto made = std::make_unique<BlendCase>();
  made->lengths = std::move(lengths);
  made->dtype = dtype;
  made->full->source.path = "full";
  made->joined->source.path = "joined";
  made->joined->key_rotation = KeyRotation::kUnrotated;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const uint64_t tokens = made->tokens(), row = uint64_t{made->kv_heads} * made->dim;
  std::vector<std::shared_ptr<Snapshot>> chunks;
  for (size_t c = 0; c < made->lengths.size(); ++c) {
    chunks.push_back(std::make_shared<Snapshot>());
    chunks.back()->source.path = "chunk" + std::to_string(c);
  }
  for (uint32_t l = 0; l < made->layers; ++l) {
    LayerKv full_layer, joined_layer;
    full_layer.index = joined_layer.index = l;
    for (const bool is_value : {false, true}) {
      std::vector<float> full(tokens * row), old(tokens * row);
      for (float& v : full) v = normal(random);
      uint64_t t = 0;
      for (size_t c = 0; c < made->lengths.size(); ++c) {
        for (uint64_t i = 0; i < made->lengths[c]; ++i, ++t) {
          const float size = l == 0 || c == 0 ? 0 : 0.05f * l + 1 / (1.0f + static_cast<float>(i));
          for (uint64_t d = 0; d < row; ++d) {
            old[t * row + d] = full[t * row + d] + (size == 0 ? 0 : size * normal(random));
          }
        }
      }
      t = 0;
      for (size_t c = 0; c < made->lengths.size(); ++c) {
        const std::vector<float> part(
            old.begin() + static_cast<std::ptrdiff_t>(t * row),
            old.begin() + static_cast<std::ptrdiff_t>((t + made->lengths[c]) * row));
        KvTensor tensor = made->Store(is_value ? part : Rotated(*made, part, 0), made->lengths[c],
                                      c % 2 == 0 ? Order::kTokenHeadDim : Order::kHeadTokenDim);
        if (!is_value) chunks[c]->layers.push_back({l, {}, {}, tensor, {}});
        if (is_value) chunks[c]->layers.back().v = tensor;
        t += made->lengths[c];
      }
      const KvTensor whole =
          made->Store(is_value ? full : Rotated(*made, full, 0), tokens, Order::kTokenHeadDim);
      const KvTensor unrotated = made->Store(old, tokens, Order::kTokenHeadDim);
      if (is_value) {
        full_layer.v = whole;
        joined_layer.v = unrotated;
      } else {
        full_layer.k = whole;
        joined_layer.k = unrotated;
      }
    }
    made->full->layers.push_back(full_layer);
    made->joined->layers.push_back(joined_layer);
    const size_t queries = tokens * made->query_heads * made->dim;
    std::byte* q = made->Keep(queries * 4);
    for (size_t i = 0; i < queries; ++i) StoreLE(q + 4 * i, normal(random));
    TraceLayer rows;
    rows.layer = l;
    rows.queries = ContiguousView(DType::kF32, {tokens, made->query_heads, made->dim}, q);
    made->trace.layers.push_back(rows);
  }
  made->chunks.assign(chunks.begin(), chunks.end());
  made->trace.path = "trace";
  made->trace.query_heads = made->query_heads;
  made->trace.head_dim = made->dim;
  made->trace.rows = tokens;
  return made;
}

}  // namespace kv::test
