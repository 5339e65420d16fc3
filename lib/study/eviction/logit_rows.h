// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/attention/layer_attention.h"

namespace kv::eviction {

// What a softmax divides by, so that parts of a row can be weighed later to the same bits.
struct SoftmaxScale {
  float maximum = 0;
  float factor = 0;  // 0: the row gives nothing, or nothing that is a number
};
// Logits to weights, in place.
SoftmaxScale Softmax(std::span<float> row, std::vector<float>& scratch);
void WeighAs(const SoftmaxScale& scale, std::span<float> part);

// Logits of consecutive rows over the whole cache, nothing evicted, all query heads. What a row
// gives to any subset of the keys is a softmax over some of its logits, so that rules which evict
// at every step need no compacted keys of their own, and all rules share one product.
class LogitRows {
 public:
  // `whole`: every kv head's keys up to the last row at least.
  LogitRows(const LayerAttention& attention, std::span<const KeptKeys> whole, ThreadPool& pool);

  // Computes the tile that the row at `position` belongs to; returns the position after it. Tiles
  // lie where they lie whatever is asked for, so that a row comes out the same every time.
  uint64_t LoadTileOf(uint64_t position);
  bool Holds(uint64_t position) const { return begin_ <= position && position < end_; }
  // Of the row at `position`, which must be loaded: position + 1 values.
  const float* Row(uint32_t head, uint64_t position) const;
  // Logits of the keys at `positions`, ascending and up to `position`, and their weights.
  void Pick(uint32_t head, uint64_t position, std::span<const uint32_t> positions,
            std::vector<float>& logits) const;
  void Weigh(uint32_t head, uint64_t position, std::span<const uint32_t> positions, WeightRule rule,
             std::vector<float>& weights, std::vector<float>& scratch) const;

 private:
  void LoadHead(uint32_t head);

  const LayerAttention& attention_;
  std::span<const KeptKeys> whole_;
  ThreadPool& pool_;
  uint64_t tile_rows_ = 1;
  uint64_t begin_ = 0, end_ = 0, stride_ = 0;
  std::vector<std::vector<float>> of_head_;  // [query head][row][key]
};

}  // namespace kv::eviction
