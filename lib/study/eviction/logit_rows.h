// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/attention/layer_attention.h"

namespace kv::eviction {

// The maximum and the factor of one softmax. With them parts of the row can be weighted later, and
// come out the same to the bit.
struct SoftmaxScale {
  float maximum = 0;
  float factor = 0;  // 0 if the row is empty or its weights are not numbers
};
// Turns logits into weights, in place.
SoftmaxScale Softmax(std::span<float> row, std::vector<float>& scratch);
void WeighAs(const SoftmaxScale& scale, std::span<float> part);

// Holds the logits of consecutive rows over the whole, unevicted cache, for all query heads. The
// weights of a row over any subset of the keys are a softmax over some of its logits. Rules that
// evict at every step therefore need no compacted keys of their own, and all rules share one
// product.
class LogitRows {
 public:
  // `whole` must hold the keys of every kv head, at least up to the last row.
  LogitRows(const LayerAttention& attention, std::span<const KeptKeys> whole, ThreadPool& pool);

  // Computes the tile that the row at `position` belongs to, and returns the position after the
  // tile. The bounds of tiles do not depend on the request, so a row comes out the same every time.
  uint64_t LoadTileOf(uint64_t position);
  bool Holds(uint64_t position) const { return begin_ <= position && position < end_; }
  // Returns the position + 1 logits of the row at `position`, which must be loaded.
  const float* Row(uint32_t head, uint64_t position) const;
  // Pick the logits of the keys at `positions`, which ascend and do not exceed `position`; Weigh
  // turns them into weights.
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
