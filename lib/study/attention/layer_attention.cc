// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Logits, weights and column sums of one layer, and the keys that a head still holds.
#include "lib/study/attention/layer_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

KeyType ToKeyType(DType dtype) {
  if (dtype == DType::kF16) return KeyType::kF16;
  if (dtype == DType::kBF16) return KeyType::kBF16;
  return KeyType::kF32;
}

}  // namespace

LayerAttention::LayerAttention(const AttentionTrace& trace, const TraceLayer& rows,
                               const LayerKv& kv)
    : trace_(trace),
      rows_(rows),
      kv_(kv),
      rule_(MakeRule(trace, rows)),
      scale_(static_cast<float>(rule_.ScaleFor(kv.k.head_dim))),
      key_type_(ToKeyType(kv.k.dtype)) {}

void LayerAttention::GatherKeys(uint32_t kv_head, uint64_t begin, uint64_t count,
                                std::byte* out) const {
  const KvTensor& k = kv_.k;
  if (k.dtype == DType::kF16 || k.dtype == DType::kBF16 || k.dtype == DType::kF32) {
    Gather(k, begin, count, kv_head, 1, Order::kHeadTokenDim, {out, count * key_bytes()});
    return;
  }
  Bytes raw(count * k.units_per_head() * k.unit_bytes());
  Gather(k, begin, count, kv_head, 1, Order::kHeadTokenDim, raw);
  std::vector<float> floats(count * head_dim());
  ToFloats(k.dtype, raw, floats);
  std::memcpy(out, floats.data(), floats.size() * sizeof(float));
}

HeadFloats LayerAttention::WidenHead(uint32_t kv_head, uint64_t tokens) const {
  const auto widen = [&](const KvTensor& tensor) {
    KvTensor one = tensor;
    one.heads = 1;
    for (StridedPiece& piece : one.pieces) {
      piece.data += piece.head.Offset(kv_head);
      piece.head = {};
    }
    return GatherFloats(one, 0, tokens, Order::kTokenHeadDim);
  };
  HeadFloats floats;
  if (has_queries()) floats.k = widen(kv_.k);
  if (kv_.v) floats.v = widen(*kv_.v);
  return floats;
}

void LayerAttention::Mask(uint64_t position, std::span<const uint32_t> key_positions,
                          float* logits) const {
  if (!has_queries()) return;  // probabilities were masked when they were recorded
  if (rule_.softcap != 0) {
    const auto cap = static_cast<float>(rule_.softcap);
    for (size_t i = 0; i < key_positions.size(); ++i) logits[i] = Softcapped(logits[i], cap);
  }
  for (size_t i = 0; i < key_positions.size(); ++i) {
    if (rule_.Sees(static_cast<int64_t>(position), key_positions[i])) break;
    logits[i] = -INFINITY;
  }
}

void KeptKeys::AppendUpTo(uint64_t end) {
  if (end <= next_) return;
  const size_t before = positions_.size();
  for (uint64_t p = next_; p < end; ++p) positions_.push_back(static_cast<uint32_t>(p));
  if (with_keys_) {
    keys_.resize(positions_.size() * attention_->key_bytes());
    attention_->GatherKeys(kv_head_, next_, end - next_,
                           keys_.data() + before * attention_->key_bytes());
  }
  next_ = static_cast<uint32_t>(end);
}

void KeptKeys::Compact(const KeepPlan& kept) {
  KV_ASSERT(IsApplicable(kept, positions_.size()));
  const size_t bytes = with_keys_ ? attention_->key_bytes() : 0;
  size_t to = 0;
  for (const KeepRange& range : kept) {
    if (range.begin != to) {
      std::copy_n(positions_.begin() + range.begin, range.count,
                  positions_.begin() + static_cast<std::ptrdiff_t>(to));
    }
    if (range.begin != to && bytes != 0) {
      std::memmove(keys_.data() + to * bytes, keys_.data() + range.begin * bytes,
                   range.count * bytes);
    }
    to += range.count;
  }
  positions_.resize(to);
  keys_.resize(to * bytes);
}

KeyRows KeptKeys::rows() const {
  return {keys_.data(), attention_->key_type(), attention_->key_bytes(), positions_.size(),
          attention_->head_dim()};
}

namespace {

size_t Visible(const KeptKeys& keys, uint64_t position) {
  const auto positions = keys.positions();
  return static_cast<size_t>(
      std::upper_bound(positions.begin(), positions.end(), static_cast<uint32_t>(position)) -
      positions.begin());
}

void LogProbabilities(const LayerAttention& attention, uint32_t head, uint64_t position,
                      std::span<const uint32_t> key_positions, RowScratch& scratch, float* out) {
  scratch.queries.resize(position + 1);
  ReadProbabilityRow(attention.rows(), head, position - attention.first_row(), position + 1,
                     scratch.queries.data());
  for (size_t i = 0; i < key_positions.size(); ++i) {
    out[i] = std::log(scratch.queries[key_positions[i]]);
  }
}

}  // namespace

size_t RowLogits(const LayerAttention& attention, uint32_t head, uint64_t position,
                 const KeptKeys& keys, RowScratch& scratch, float* out) {
  const size_t seen = Visible(keys, position);
  if (!attention.has_queries()) {
    LogProbabilities(attention, head, position, keys.positions().first(seen), scratch, out);
    return seen;
  }
  scratch.queries.resize(attention.head_dim());
  ReadQueries(attention.rows(), head, position - attention.first_row(), 1, scratch.queries.data());
  KeyRows rows = keys.rows();
  rows.count = seen;
  QueryLogits(scratch.queries.data(), rows, attention.scale(), out);
  attention.Mask(position, keys.positions().first(seen), out);
  return seen;
}

void AddColumnSums(const LayerAttention& attention, uint32_t head, uint64_t begin,
                   std::span<const float> row_weights, WeightRule rule, const KeptKeys& keys,
                   RowScratch& scratch, double* sums) {
  const size_t n = keys.size(), dim = attention.head_dim();
  std::vector<float> tile_sums(n);
  for (size_t done = 0; done < row_weights.size(); done += kTileRows) {
    const size_t rows = std::min(kTileRows, row_weights.size() - done);
    const uint64_t first = begin + done;
    const size_t visible = Visible(keys, first);
    KV_ASSERT(visible + (row_weights.size() - done) - 1 <= n);
    const size_t columns = visible + rows - 1;
    std::fill(tile_sums.begin(), tile_sums.end(), 0.0f);
    if (attention.has_queries()) {
      scratch.queries.resize(rows * dim);
      ReadQueries(attention.rows(), head, first - attention.first_row(), rows,
                  scratch.queries.data());
    }
    const ScoreTile tile{scratch.queries.data(), dim, rows, keys.rows(), visible,
                         attention.scale()};
    // This kernel alone has the same bits on every machine, but it cannot mask logits, and
    // flash-local weights are no softmax.
    if (attention.has_queries() && !attention.masks() && rule == WeightRule::kSoftmax) {
      scratch.tile.resize(BlockSumScratchFloats(dim, columns));
      AddTileBlockSums(tile, 1, &row_weights[done], scratch.tile.data(), tile_sums.data());
      for (size_t j = 0; j < columns; ++j) sums[j] += tile_sums[j];
      continue;
    }
    scratch.logits.resize(rows * columns);
    if (attention.has_queries()) {
      scratch.tile.resize(TileScratchFloats(dim));
      TileLogits(tile, scratch.logits.data(), columns, scratch.tile.data());
    }
    for (size_t r = 0; r < rows; ++r) {
      float* row = scratch.logits.data() + r * columns;
      const size_t seen = visible + r;
      const auto positions = keys.positions().first(seen);
      if (attention.has_queries()) {
        attention.Mask(first + r, positions, row);
      } else {
        LogProbabilities(attention, head, first + r, positions, scratch, row);
      }
      if (rule == WeightRule::kSoftmax) {
        AddRowBlockSums(row, seen, 1, row_weights[done + r], tile_sums.data());
      } else {
        WeighRow(row, seen, rule);
        AddScaled(row, seen, row_weights[done + r], tile_sums.data());
      }
    }
    for (size_t j = 0; j < columns; ++j) sums[j] += tile_sums[j];
  }
}

}  // namespace kv
