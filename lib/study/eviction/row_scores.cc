// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/row_scores.h"

#include <algorithm>

#include "lib/core/base/error.h"

namespace kv::eviction {
namespace {

HeadSums SumGroups(const LayerCaches& caches, std::vector<std::vector<double>> of_query_head) {
  const uint32_t group = caches.attention.group();
  HeadSums sums(caches.attention.kv_heads());
  for (uint32_t head = 0; head < of_query_head.size(); ++head) {
    std::vector<double>& to = sums[head / group];
    if (head % group == 0) {
      to = std::move(of_query_head[head]);
    } else {
      for (size_t j = 0; j < to.size(); ++j) to[j] += of_query_head[head][j];
    }
  }
  return sums;
}

// Before anything is evicted, and in long stretches: whole tiles at once.
HeadSums SumTiles(const LayerCaches& caches, std::span<const KeptKeys> keys, uint64_t begin,
                  std::span<const float> row_weights, WeightRule rule) {
  const LayerAttention& attention = caches.attention;
  std::vector<std::vector<double>> of_query_head(attention.query_heads());
  caches.pool->ParallelFor(of_query_head.size(), [&](uint64_t head) {
    std::vector<double>& sums = of_query_head[head];
    const KeptKeys& seen = keys[head / attention.group()];
    sums.resize(std::max(caches.size(), seen.size()));
    RowScratch scratch;
    AddColumnSums(attention, static_cast<uint32_t>(head), begin, row_weights, rule, seen, scratch,
                  sums.data());
    sums.resize(caches.size());
  });
  return SumGroups(caches, std::move(of_query_head));
}

// Row by row, from the logits that all rules share.
HeadSums SumRows(const LayerCaches& caches, uint64_t begin, std::span<const float> row_weights,
                 WeightRule rule) {
  const uint64_t end = begin + row_weights.size();
  std::vector<std::vector<double>> of_query_head(caches.attention.query_heads());
  caches.pool->ParallelFor(of_query_head.size(), [&](uint64_t head) {
    std::vector<double>& sums = of_query_head[head];
    sums.resize(caches.size());
    const KeptKeys& held = caches.of_head[head / caches.attention.group()];
    std::vector<float> weights, scratch;
    for (uint64_t row = begin; row < end; ++row) {
      const auto seen = held.positions().first(held.size() - (end - 1 - row));
      caches.shared->logits().Weigh(static_cast<uint32_t>(head), row, seen, rule, weights, scratch);
      const auto factor = static_cast<double>(row_weights[row - begin]);
      for (size_t j = 0; j < seen.size(); ++j) sums[j] += factor * static_cast<double>(weights[j]);
    }
  });
  return SumGroups(caches, std::move(of_query_head));
}

}  // namespace

HeadSums ColumnSums(LayerCaches& caches, uint64_t begin, std::span<const float> row_weights,
                    WeightRule rule) {
  if (caches.shared == nullptr) return SumTiles(caches, caches.of_head, begin, row_weights, rule);
  if (caches.size() != begin + row_weights.size()) {
    return SumRows(caches, begin, row_weights, rule);
  }
  return caches.shared->SumsOf({begin, {row_weights.begin(), row_weights.end()}, rule}, [&] {
    return SumTiles(caches, caches.shared->whole(), begin, row_weights, rule);
  });
}

Scores RowWeights(const LayerCaches& caches, uint32_t head, uint64_t position) {
  const uint32_t kv_head = head / caches.attention.group();
  const KeptKeys& held = caches.of_head[kv_head];
  std::vector<float> row, scratch;
  if (caches.shared != nullptr && caches.shared->logits().Holds(position)) {
    const auto positions = held.positions();
    const auto seen = std::upper_bound(positions.begin(), positions.end(), position);
    caches.shared->logits().Weigh(head, position, {positions.begin(), seen}, WeightRule::kSoftmax,
                                  row, scratch);
  } else {
    // Rows of the prompt are looked at while the cache is whole.
    KV_ASSERT(caches.shared == nullptr || held.size() == held.positions().back() + 1);
    const KeptKeys& keys = caches.shared == nullptr ? held : caches.shared->whole()[kv_head];
    RowScratch buffers;
    row.resize(keys.size());
    row.resize(RowLogits(caches.attention, head, position, keys, buffers, row.data()));
    WeighRow(row.data(), row.size(), WeightRule::kSoftmax);
  }
  Scores weights(row.begin(), row.end());
  weights.resize(held.size());
  return weights;
}

}  // namespace kv::eviction
