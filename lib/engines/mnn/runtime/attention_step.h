// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "lib/engines/mnn/runtime/runtime.h"
#include "lib/study/attention/layer_attention.h"

namespace kv::mnn::runtime {

// Computes the attention of one decode step over a layer's cache as the runtime holds it, so that
// whatever the runtime lost is missing here too. Recorded queries attend to the cache itself;
// recorded probabilities and block scores are taken as they are; without any of these, all keys
// weigh the same.
class AttentionStep {
 public:
  // `trace` may be null. The snapshot is the one that the runtime reads.
  AttentionStep(const Snapshot& snapshot, const AttentionTrace* trace, WeightRule weights,
                const eviction::BlockConfig& h2o, uint64_t prompt, ThreadPool& pool);

  // Attends and returns the block sums that H2O needs of a layer in its range. Returns nothing once
  // a recorded stream has ended.
  std::optional<std::vector<float>> Score(const mnn::h2o::CallStart& start, uint64_t position,
                                          uint64_t blocks, Runtime& runtime);
  // Attends without block sums.
  void Attend(uint32_t layer, uint64_t position, Runtime& runtime) {
    Attend(layer, position, runtime, nullptr);
  }

  bool has_queries() const { return has_queries_; }
  double seconds() const { return seconds_; }  // spent computing, the runtime's reads included

 private:
  void Attend(uint32_t layer, uint64_t position, Runtime& runtime, std::vector<float>* sums);
  void Logits(const LayerAttention& attention, const CachePiece& piece);
  void AddValues(const LayerAttention& attention, const CachePiece& piece);
  // Runs the body for each kv head, on all threads if the work is large enough.
  void ForHeads(const LayerAttention& attention, uint64_t tokens,
                const std::function<void(uint64_t)>& body);

  const Snapshot& snapshot_;
  WeightRule weights_;
  uint64_t block_tokens_;
  ThreadPool& pool_;
  bool has_queries_ = false;
  std::vector<std::unique_ptr<LayerAttention>> layers_;  // by place; null without queries
  std::vector<LayerAttention> traced_;                   // of a trace of probabilities
  std::unique_ptr<mnn::h2o::BlockSumSource> recorded_;
  double seconds_ = 0;
  // Buffers of the call that runs.
  uint64_t length_ = 0;
  std::vector<float> queries_, logits_, weights_row_, outputs_;
  std::vector<std::vector<float>> value_tiles_;  // per kv head
};

}  // namespace kv::mnn::runtime
