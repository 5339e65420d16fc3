// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/study/eviction/block_choice.h"

namespace kv::mnn::h2o {

// READ ME FIRST. The engine has three surprises, which a replay must reproduce:
// 1. The clock counts layer calls, not tokens, and one trigger in any layer resets it for all.
// 2. A plan is made at the end of a layer's call and applied at the start of its next one, but the
//    scores are remapped as soon as it is made.
// 3. h2o_keep_ratio and h2o_lossy_ratio are those of the last plan, whichever layer made it,
//    relative to that layer's length at the time.

// Visits the parameters under the names of the engine's meta fields ("h2o_layer_start" ...): "h2o_"
// before the names of BlockConfig.
void ForEachParameter(const eviction::BlockConfig& config,
                      const std::function<void(std::string_view name, double value)>& visit);
// Returns false if there is no such parameter.
bool SetParameter(std::string_view meta_name, double value, eviction::BlockConfig& config);

enum class MnnRevision {
  kFinal,  // the final branch
  kR6,     // the measured build: one score vector for all layers; a floor above the target evicts
  // The published description, which neither build follows: scores and a clock of decode steps for
  // each layer; if sink and recent blocks exceed the target, only they are kept.
  kDesign,
};

struct MnnGeometry {
  uint32_t layers = 1;
  uint32_t query_heads = 1, kv_heads = 1, head_dim = 1;
  uint32_t element_bytes = 2;

  uint64_t bytes_per_token() const {  // bytes of K and V in one layer
    return uint64_t{2} * kv_heads * head_dim * element_bytes;
  }
};

// The figures that the engine reports, under the engine's names.
struct MnnMetrics {
  float keep_ratio = 1.0f;
  float lossy_ratio = 1.0f;
  float target_keep_effective = 1.0f;
  float floor_keep = 0.0f;      // h2o_floor_keep_by_recent_sink
  float quantized_keep = 1.0f;  // h2o_block_quantized_keep
  uint64_t last_evict_tokens = 0;
  uint64_t total_evict_tokens = 0;  // tokens of each layer's plans, counted when planned
};

struct CallStart {
  uint32_t layer = 0;
  uint64_t global_step = 0;  // layer calls so far, including this one
  bool plan_applied = false;
  bool plan_dropped = false;  // true: a plan was pending but no longer fitted the cache
  KeepPlan applied;           // indices into the cache before compaction
  uint64_t length_before = 0, length_compacted = 0, length = 0;  // length includes new tokens
  bool in_range = false;  // true if this layer is scored and evicted at all
};

struct CallEnd {
  bool triggered = false;
  eviction::BlockChoice decision;  // for a trigger
  std::vector<float> ema_scores;   // before the remap; empty for layers out of range
  uint64_t final_keep_tokens = 0;  // the budget that the engine hands to its lossless path
};

// The engine's decisions over decode steps, as a state machine without tensors. The caller supplies
// the block sums of each call and gets the tokens that are kept. Calls must come in the engine's
// order: token by token, for each layer from 0 to the last, Begin and then Finish.
class MnnEngine {
 public:
  MnnEngine(const eviction::BlockConfig& config, const MnnGeometry& geometry, MnnRevision revision,
            uint64_t prompt_tokens);

  CallStart Begin(uint64_t new_tokens = 1);
  // Ends a layer's call. `block_sums` holds, per block of the cache, the sum of attention weights
  // of all query heads and rows. It is ignored for layers out of range.
  CallEnd Finish(std::span<const float> block_sums, uint64_t query_rows = 1);

  const eviction::BlockConfig& config() const { return config_; }
  const MnnGeometry& geometry() const { return geometry_; }
  const MnnMetrics& metrics() const { return metrics_; }
  uint64_t length(uint32_t layer) const { return layers_[layer].length; }
  uint64_t capacity(uint32_t layer) const { return layers_[layer].capacity; }
  std::span<const float> scores(uint32_t layer) const { return GetScores(layer); }
  const KeepPlan& pending(uint32_t layer) const { return layers_[layer].pending; }
  uint64_t pending_remove(uint32_t layer) const { return layers_[layer].pending_remove; }
  uint64_t blocks(uint64_t length) const;
  // Returns KVMeta::previous after the last complete forward pass, which follows the last layer
  // only.
  uint64_t meta_previous() const { return meta_previous_; }

  // Cuts a layer's cache, as when a draft is rolled back, which the engine does not control. A plan
  // made before no longer fits and is dropped at the next call.
  void Truncate(uint32_t layer, uint64_t length);
  // Drops a layer's plan, as the engine's lossless path does when its range shrinks. The scores
  // stay remapped. Returns true if there was a plan.
  bool DropPlan(uint32_t layer);

 private:
  struct Layer {
    uint64_t length = 0, capacity = 0;
    std::vector<float> scores;
    KeepPlan pending;
    uint64_t pending_remove = 0;
    bool pending_ready = false;
    uint64_t steps = 0, last_trigger_step = 0;  // the layer's own clock, used by kDesign
  };

  std::vector<float>& GetScores(uint32_t layer) {
    return layers_[revision_ == MnnRevision::kR6 ? 0 : layer].scores;
  }
  const std::vector<float>& GetScores(uint32_t layer) const {
    return layers_[revision_ == MnnRevision::kR6 ? 0 : layer].scores;
  }
  void ApplyPending(Layer& layer, CallStart& start);
  std::vector<float> Accumulated(std::span<const float> block_sums, uint64_t query_rows,
                                 uint32_t layer) const;
  bool IsDue(const Layer& layer) const;
  void Trigger(uint32_t index, std::vector<float>& scores, CallEnd& end);

  eviction::BlockConfig config_;
  MnnGeometry geometry_;
  MnnRevision revision_;
  eviction::LayerRange range_;
  std::vector<Layer> layers_;
  MnnMetrics metrics_;
  uint64_t cursor_ = 0;  // layer calls begun
  uint64_t last_trigger_step_ = 0;
  uint64_t meta_previous_ = 0;
  bool in_call_ = false;
  // Tokens of the current call:
  uint64_t call_added_ = 0, call_removed_ = 0, call_reserved_ = 0;
};

}  // namespace kv::mnn::h2o
