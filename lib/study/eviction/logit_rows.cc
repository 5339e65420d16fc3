// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/logit_rows.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/checked.h"
#include "lib/core/base/error.h"

namespace kv::eviction {
namespace {

constexpr size_t kSumBlock = 64;
constexpr uint64_t kTileBytes = uint64_t{64} << 20;
// Keys that stay in a core's cache are multiplied row by row, which gives the same bits on every
// machine; longer ones through BLAS, several times as fast.
constexpr uint64_t kKeysInCache = uint64_t{1} << 18;

}  // namespace

LogitRows::LogitRows(const LayerAttention& attention, std::span<const KeptKeys> whole,
                     ThreadPool& pool)
    : attention_(attention), whole_(whole), pool_(pool), of_head_(attention.query_heads()) {
  const uint64_t row_bytes = attention.query_heads() * attention.end_row() * sizeof(float);
  tile_rows_ = std::clamp<uint64_t>(kTileBytes / std::max<uint64_t>(1, row_bytes), 1, kTileRows);
}

uint64_t LogitRows::LoadTileOf(uint64_t position) {
  KV_ASSERT(attention_.first_row() <= position && position < attention_.end_row());
  if (Holds(position)) return end_;
  begin_ = position - (position - attention_.first_row()) % tile_rows_;
  end_ = stride_ = std::min(begin_ + tile_rows_, attention_.end_row());
  pool_.ParallelFor(of_head_.size(), [&](uint64_t head) { LoadHead(static_cast<uint32_t>(head)); });
  return end_;
}

void LogitRows::LoadHead(uint32_t head) {
  std::vector<float>& out = of_head_[head];
  const uint64_t rows = end_ - begin_, dim = attention_.head_dim();
  out.resize(rows * stride_);
  const KeptKeys& keys = whole_[head / attention_.group()];
  const auto positions = keys.positions();
  RowScratch scratch;
  if (!attention_.has_queries() || stride_ * attention_.key_bytes() <= kKeysInCache) {
    for (uint64_t row = begin_; row < end_; ++row) {
      RowLogits(attention_, head, row, keys, scratch, &out[(row - begin_) * stride_]);
    }
    return;
  }
  scratch.queries.resize(rows * dim);
  ReadQueries(attention_.rows(), head, begin_ - attention_.first_row(), rows,
              scratch.queries.data());
  scratch.tile.resize(TileScratchFloats(dim));
  TileLogits({scratch.queries.data(), dim, rows, keys.rows(), begin_ + 1, attention_.scale()},
             out.data(), stride_, scratch.tile.data());
  for (uint64_t row = begin_; row < end_; ++row) {
    attention_.Mask(row, positions.first(row + 1), &out[(row - begin_) * stride_]);
  }
}

const float* LogitRows::Row(uint32_t head, uint64_t position) const {
  KV_ASSERT(Holds(position));
  return &of_head_[head][(position - begin_) * stride_];
}

void LogitRows::Pick(uint32_t head, uint64_t position, std::span<const uint32_t> positions,
                     std::vector<float>& logits) const {
  const float* row = Row(head, position);
  logits.resize(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) logits[i] = row[positions[i]];
}

void LogitRows::Weigh(uint32_t head, uint64_t position, std::span<const uint32_t> positions,
                      WeightRule rule, std::vector<float>& weights,
                      std::vector<float>& scratch) const {
  Pick(head, position, positions, weights);
  if (rule == WeightRule::kSoftmax) {
    Softmax(weights, scratch);
  } else {
    WeighRow(weights.data(), weights.size(), rule);
  }
}

SoftmaxScale Softmax(std::span<float> row, std::vector<float>& scratch) {
  SoftmaxScale scale{RowMaximum(row.data(), row.size()), 0};
  if (scale.maximum == -INFINITY) {
    std::fill(row.begin(), row.end(), 0.0f);
    return scale;
  }
  ExpRow(row.data(), row.size(), scale.maximum);
  scratch.resize(CeilDiv(row.size(), kSumBlock));
  const double total = BlockSums(row.data(), row.size(), kSumBlock, scratch.data());
  scale.factor = static_cast<float>(1 / total);
  for (float& weight : row) weight *= scale.factor;
  if (!std::isfinite(total)) scale.factor = 0;
  return scale;
}

void WeighAs(const SoftmaxScale& scale, std::span<float> part) {
  ExpRow(part.data(), part.size(), scale.maximum);
  for (float& weight : part) weight *= scale.factor;
}

}  // namespace kv::eviction
