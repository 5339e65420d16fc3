// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "lib/core/base/half.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/attention/probabilities.h"

namespace kv::test {

// A random snapshot (f16) and the trace of random queries over it, kept in memory. Seeded.
struct AttentionCase {
  Snapshot snapshot;
  AttentionTrace trace;
  std::vector<std::unique_ptr<Bytes>> storage;

  std::byte* Keep(size_t bytes) {
    storage.push_back(std::make_unique<Bytes>(bytes));
    return storage.back()->data();
  }
};

struct CaseShape {
  uint32_t layers = 3, query_heads = 4, kv_heads = 2, dim = 16;
  uint64_t tokens = 160;
  uint32_t v_dim = 0;  // 0: as dim
};

inline std::unique_ptr<AttentionCase> MakeAttentionCase(const CaseShape& shape, uint32_t seed) {
  auto made = std::make_unique<AttentionCase>();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  made->snapshot.source.path = "snapshot";
  made->trace.path = "trace";
  made->trace.query_heads = shape.query_heads;
  made->trace.head_dim = shape.dim;
  made->trace.rows = shape.tokens;
  for (uint32_t l = 0; l < shape.layers; ++l) {
    LayerKv layer;
    layer.index = l;
    KvTensor tensors[2];
    for (KvTensor& tensor : tensors) {
      const uint32_t dim = &tensor == &tensors[1] && shape.v_dim != 0 ? shape.v_dim : shape.dim;
      const size_t values = shape.tokens * shape.kv_heads * dim;
      std::byte* bytes = made->Keep(values * 2);
      for (size_t i = 0; i < values; ++i) StoreLE(bytes + 2 * i, F32ToF16(normal(random)));
      tensor = ContiguousTensor(bytes, DType::kF16, shape.tokens, shape.kv_heads, dim,
                                Order::kTokenHeadDim);
    }
    layer.k = tensors[0];
    layer.v = tensors[1];
    made->snapshot.layers.push_back(layer);
    const size_t queries = shape.tokens * shape.query_heads * shape.dim;
    std::byte* q = made->Keep(queries * 4);
    for (size_t i = 0; i < queries; ++i) StoreLE(q + 4 * i, 1.5f * normal(random));
    TraceLayer rows;
    rows.layer = l;
    rows.queries = ContiguousView(DType::kF32, {shape.tokens, shape.query_heads, shape.dim}, q);
    made->trace.layers.push_back(rows);
  }
  return made;
}

// Adds random gradients to every layer.
inline void AddGradients(AttentionCase& made, const GradientRows& rows, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  made.trace.gradients = rows;
  for (TraceLayer& layer : made.trace.layers) {
    const uint64_t dim = made.snapshot.Find(layer.layer)->v->head_dim;
    const size_t values = rows.samples * rows.rows * made.trace.query_heads * dim;
    std::byte* g = made.Keep(values * 4);
    for (size_t i = 0; i < values; ++i) StoreLE(g + 4 * i, 0.1f * normal(random));
    layer.gradients =
        ContiguousView(DType::kF32, {rows.samples, rows.rows, made.trace.query_heads, dim}, g);
  }
}

// Replaces a layer's queries by the probabilities that follow from them.
inline void RecordProbabilities(AttentionCase& made) {
  for (TraceLayer& rows : made.trace.layers) {
    const LayerKv& layer = *made.snapshot.Find(rows.layer);
    const uint64_t n = made.trace.rows, heads = made.trace.query_heads, dim = layer.k.head_dim;
    const std::vector<float> k = GatherFloats(layer.k, 0, n, Order::kHeadTokenDim);
    std::byte* out = made.Keep(heads * n * n * 4);
    std::vector<float> q(n * dim);
    std::vector<double> p(n * n);
    std::vector<int64_t> positions(n);
    for (uint64_t i = 0; i < n; ++i) positions[i] = static_cast<int64_t>(i);
    for (uint32_t h = 0; h < heads; ++h) {
      ReadQueries(rows, h, 0, n, q.data());
      const float* keys = &k[h / (heads / layer.k.heads) * n * dim];
      AttentionProbabilities({MakeMatrix(q, n, dim), positions}, {{keys, n, dim, dim}, {}, {}, {}},
                             MakeRule(made.trace, rows), 0, n, p);
      for (size_t i = 0; i < p.size(); ++i) {
        StoreLE(out + 4 * (h * n * n + i), static_cast<float>(p[i]));
      }
    }
    rows.queries.reset();
    rows.probabilities = {{0, 0, ContiguousView(DType::kF32, {heads, n, n}, out)}};
  }
  made.trace.level = TraceLevel::kProbabilities;
}

}  // namespace kv::test
