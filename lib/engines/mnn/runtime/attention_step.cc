// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/runtime/attention_step.h"

#include <algorithm>
#include <cstring>

#include "lib/core/base/error.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/engines/mnn/runtime/stopwatch.h"

namespace kv::mnn::runtime {
namespace {

constexpr uint64_t kTileTokens = 64;
// Multiplications of one call below which threads cost more than they give.
constexpr uint64_t kWorthThreads = uint64_t{1} << 20;

void WidenRow(DType dtype, const std::byte* from, float* to, size_t count) {
  if (dtype == DType::kF16) {
    HalfToFloat(from, to, count);
  } else if (dtype == DType::kBF16) {
    BFloatToFloat(from, to, count);
  } else {
    std::memcpy(to, from, count * sizeof(float));
  }
}

}  // namespace

AttentionStep::AttentionStep(const Snapshot& snapshot, const AttentionTrace* trace,
                             WeightRule weights, const eviction::BlockConfig& h2o, uint64_t prompt,
                             ThreadPool& pool)
    : snapshot_(snapshot),
      weights_(weights),
      block_tokens_(static_cast<uint64_t>(h2o.block_tokens)),
      pool_(pool) {
  layers_.resize(snapshot.layers.size());
  if (trace == nullptr) return;
  if (trace->block_scores) {
    recorded_ =
        mnn::h2o::StreamBlockSums(trace->block_scores->open(), trace->block_scores->layers, prompt);
    return;
  }
  std::vector<uint32_t> places;
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    const LayerKv& layer = snapshot.layers[i];
    const TraceLayer* rows = trace->Find(layer.index);
    if (rows == nullptr) continue;
    if (rows->queries) {
      layers_[i] = std::make_unique<LayerAttention>(*trace, *rows, layer);
      has_queries_ = true;
    } else {
      traced_.emplace_back(*trace, *rows, layer);
      places.push_back(static_cast<uint32_t>(i));
    }
  }
  if (!traced_.empty()) {
    recorded_ = mnn::h2o::TraceBlockSums(traced_, places, block_tokens_, weights, pool);
  }
}

std::optional<std::vector<float>> AttentionStep::Score(const mnn::h2o::CallStart& start,
                                                       uint64_t position, uint64_t blocks,
                                                       Runtime& runtime) {
  std::vector<float> sums(start.in_range ? blocks : 0);
  if (layers_[start.layer] != nullptr) {
    Attend(start.layer, position, runtime, start.in_range ? &sums : nullptr);
    return sums;
  }
  if (recorded_ != nullptr) return recorded_->Sums(start, blocks, position);
  return sums;
}

void AttentionStep::ForHeads(const LayerAttention& attention, uint64_t tokens,
                             const std::function<void(uint64_t)>& body) {
  if (tokens * attention.query_heads() * attention.head_dim() >= kWorthThreads) {
    pool_.ParallelFor(attention.kv_heads(), body);
  } else {
    for (uint64_t head = 0; head < attention.kv_heads(); ++head) body(head);
  }
}

void AttentionStep::Logits(const LayerAttention& attention, const CachePiece& piece) {
  const uint64_t dim = attention.head_dim(), group = attention.group();
  ForHeads(attention, piece.tokens, [&](uint64_t kv_head) {
    const KeyRows rows{piece.data + kv_head * piece.head_step, attention.key_type(),
                       piece.token_step, piece.tokens, dim};
    for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      QueryLogits(&queries_[head * dim], rows, attention.scale(),
                  &logits_[head * length_ + piece.begin]);
    }
  });
}

void AttentionStep::AddValues(const LayerAttention& attention, const CachePiece& piece) {
  const KvTensor& v = *attention.kv().v;
  const uint64_t dim = v.head_dim, group = attention.group();
  ForHeads(attention, piece.tokens, [&](uint64_t kv_head) {
    std::vector<float>& tile = value_tiles_[kv_head];
    tile.resize(kTileTokens * dim);
    for (uint64_t begin = 0; begin < piece.tokens; begin += kTileTokens) {
      const uint64_t tokens = std::min(kTileTokens, piece.tokens - begin);
      for (uint64_t t = 0; t < tokens; ++t) {
        WidenRow(v.dtype, piece.data + kv_head * piece.head_step + (begin + t) * piece.token_step,
                 &tile[t * dim], dim);
      }
      for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const float* weights = &logits_[head * length_ + piece.begin + begin];
        for (uint64_t t = 0; t < tokens; ++t) {
          AddScaled(&tile[t * dim], dim, weights[t], &outputs_[head * dim]);
        }
      }
    }
  });
}

void AttentionStep::Attend(uint32_t layer, uint64_t position, Runtime& runtime,
                           std::vector<float>* sums) {
  if (layers_[layer] == nullptr) return;
  const Stopwatch watch;
  const LayerAttention& attention = *layers_[layer];
  const std::span<const uint32_t> positions = runtime.positions(layer);
  const uint32_t heads = attention.query_heads();
  const uint64_t dim = attention.head_dim();
  length_ = positions.size();
  queries_.resize(heads * dim);
  logits_.resize(heads * length_);
  for (uint32_t head = 0; head < heads; ++head) {
    ReadQueries(attention.rows(), head, position - attention.first_row(), 1, &queries_[head * dim]);
  }
  runtime.Visit(layer, false, [&](const CachePiece& piece) { Logits(attention, piece); });
  for (uint32_t head = 0; head < heads; ++head) {
    float* row = &logits_[head * length_];
    attention.Mask(position, positions, row);
    if (sums != nullptr) {
      weights_row_.assign(row, row + length_);
      WeighRow(weights_row_.data(), length_, weights_);
      AddInOrder(weights_row_.data(), length_, block_tokens_, sums->data());
    }
    WeighRow(row, length_, WeightRule::kSoftmax);
  }
  if (attention.kv().v) {
    outputs_.assign(heads * uint64_t{attention.kv().v->head_dim}, 0.0f);
    value_tiles_.resize(attention.kv_heads());
    runtime.Visit(layer, true, [&](const CachePiece& piece) { AddValues(attention, piece); });
  }
  seconds_ += watch.seconds();
}

}  // namespace kv::mnn::runtime
