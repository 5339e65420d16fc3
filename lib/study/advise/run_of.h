// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/policy.h"

namespace kv::advise {

// One prompt: a cache, what the model looked at, and where decoding begins. Snapshot and trace must
// match (RequireMatch) and outlive the object.
class RunOf {
 public:
  RunOf(std::string name, const Snapshot& snapshot, const AttentionTrace& trace, uint64_t prompt,
        ThreadPool& pool);
  RunOf(const RunOf&) = delete;
  RunOf& operator=(const RunOf&) = delete;

  const std::string& name() const { return name_; }
  const AttentionTrace& trace() const { return trace_; }
  const Snapshot& snapshot() const { return snapshot_; }
  uint64_t prompt() const { return prompt_; }
  uint64_t end() const { return trace_.end_position(); }
  const std::vector<LayerAttention>& layers() const { return layers_; }  // those with rows
  std::vector<uint32_t> missing_layers() const;
  // Of all layers, K and V; layers with sliding windows hold no more than these at the end.
  uint64_t bytes_per_token() const;
  // Of one kv head of layers()[i].
  double head_bytes_per_token(size_t i) const;
  eviction::LayerPlace PlaceOf(size_t i) const;

 private:
  std::string name_;
  const Snapshot& snapshot_;  // as stored: what bytes are counted by
  Snapshot values_;           // as the model computed it
  const AttentionTrace& trace_;
  uint64_t prompt_;
  std::vector<LayerAttention> layers_;
};
using Runs = std::vector<std::unique_ptr<RunOf>>;

// K and V of one token.
uint64_t TokenBytes(const LayerKv& layer);

// Throws kTraceMismatch unless both runs are of one model: the same layers and heads.
void RequireLike(const RunOf& run, const RunOf& first);

}  // namespace kv::advise
