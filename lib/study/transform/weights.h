// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"

// Weights of a cache's features by their share in the loss, from the gradients of recorded runs.
namespace kv::transform {

// Averages, over runs, the Fisher information of each feature of K (before RoPE) and of V. With
// independent errors e of features, half of the sum over features of weight * mean e^2 over tokens
// is the expected KL divergence of a next token, in nats.
class LossWeights {
 public:
  // Adds a run: gradients of its decoded rows with respect to the prompt's tokens, except for the
  // first `sinks` and last `window` ones, which stay exact. Throws kTraceMismatch for a trace
  // without queries or gradients in every layer, kUsage if no token is left or the number of
  // features differs from that of earlier runs.
  void Add(const Snapshot& snapshot, const AttentionTrace& trace, const ModelRope* rope,
           uint64_t sinks, uint64_t window, ThreadPool& pool);
  uint64_t runs() const { return runs_; }
  // Returns the weights of K or V. Features with a tiny weight get a millionth of the mean, so that
  // no error of theirs grows without bounds.
  std::vector<float> Get(bool is_key) const;

 private:
  uint64_t runs_ = 0;
  std::vector<double> k_, v_;  // sums over runs
};

}  // namespace kv::transform
