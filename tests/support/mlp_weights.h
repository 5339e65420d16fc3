// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/weights/weights.h"
#include "lib/study/dense/mlp.h"

namespace kv::test {

struct WeightsShape {
  uint32_t layers = 2, head_dim = 4, factor = 3, hidden = 6, min_seq_len = 2;
  uint32_t prefixes = 4;  // 4 if there are weights for images, 2 if for text only
};

// Synthetic compressor weights in float, as if read from a .bin.
inline CompressorWeights MakeWeights(const WeightsShape& shape, uint32_t seed = 1) {
  std::mt19937 random(seed);
  CompressorWeights weights;
  weights.format = "kvcm";
  weights.dtype = DType::kF32;
  weights.names_assumed = true;
  weights.slots = {0, 3, 6};
  weights.header = {.num_layers = shape.layers,
                    .num_heads = 0,
                    .head_dim = shape.head_dim,
                    .hidden_size = shape.head_dim * shape.factor,
                    .compression_factor = shape.factor,
                    .min_seq_len = shape.min_seq_len,
                    .blocks_per_layer = 3 * shape.prefixes};
  for (uint32_t i = 0; i < shape.prefixes; ++i) weights.prefixes.emplace_back(kMlpPrefixes[i]);
  const uint32_t sizes[] = {shape.head_dim * shape.factor, shape.hidden, shape.hidden,
                            shape.head_dim};
  for (uint32_t i = 0; i < shape.layers * shape.prefixes * 3; ++i) {
    const uint64_t rows = sizes[i % 3 + 1], cols = sizes[i % 3];
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(cols)));
    Bytes bytes((rows * cols + rows) * sizeof(float));
    for (size_t at = 0; at < bytes.size(); at += sizeof(float)) StoreLE(&bytes[at], normal(random));
    weights.spools.push_back(FileSource::FromBytes(std::move(bytes), "weights"));
    const std::byte* data = weights.spools.back()->bytes().data();
    weights.blocks.push_back({ContiguousView(DType::kF32, {rows, cols}, data),
                              ContiguousView(DType::kF32, {rows}, data + rows * cols * 4), 0, 1});
  }
  return weights;
}

struct CacheShape {
  uint32_t layers = 2, heads = 3, head_dim = 4;
  uint64_t tokens = 20;
  Order order = Order::kTokenHeadDim;
};

// A synthetic cache; the same seed gives the same logical values in every order.
inline Snapshot MakeCache(const CacheShape& shape, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Snapshot snapshot;
  const auto tensor = [&] {
    Bytes rows(shape.tokens * shape.heads * shape.head_dim * sizeof(float));
    for (size_t at = 0; at < rows.size(); at += sizeof(float)) StoreLE(&rows[at], normal(random));
    Bytes stored(rows.size());
    Reorder(rows, Order::kTokenHeadDim, stored, shape.order, shape.tokens, shape.heads,
            shape.head_dim, sizeof(float));
    snapshot.spools.push_back(FileSource::FromBytes(std::move(stored), "cache"));
    return ContiguousTensor(snapshot.spools.back()->bytes().data(), DType::kF32, shape.tokens,
                            shape.heads, shape.head_dim, shape.order);
  };
  for (uint32_t i = 0; i < shape.layers; ++i) {
    KvTensor k = tensor(), v = tensor();
    snapshot.layers.push_back({i, {}, {}, std::move(k), std::move(v)});
  }
  return snapshot;
}

// Maps rows without gaps, tile by tile over the pool.
inline void RunMlp(const Mlp& mlp, const float* x, uint64_t rows, float* y, ThreadPool& pool) {
  const uint64_t step = mlp.tile_rows();
  pool.ParallelFor(CeilDiv(rows, step), [&](uint64_t tile) {
    Mlp::Scratch scratch;
    const uint64_t begin = tile * step;
    mlp.RunTile(x + begin * mlp.in(), mlp.in(), std::min(step, rows - begin), y + begin * mlp.out(),
                mlp.out(), scratch);
  });
}

}  // namespace kv::test
