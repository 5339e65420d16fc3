// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The rule of policy "block": its parameters, its budget, and its choice of blocks by score.
#pragma once

#include <span>
#include <vector>

#include "lib/core/snapshot/select.h"

namespace kv::eviction {

enum class TargetMode { kStatic = 0, kAdaptive = 1 };

// Parameters of the rule of policy "block", with the defaults of the engine that has it (MNN),
// which are for long caches. Ratios are float because the engine computes in float: 1 / 3.0f * n
// may exceed the exact integer and cost one token.
struct BlockConfig {
  int64_t layer_start = 2;
  int64_t layer_end = -1;  // negative: the last layer; the range includes both ends
  int64_t block_tokens = 64;
  int64_t sink_tokens = 32;     // rounded up to whole blocks
  int64_t recent_tokens = 256;  // rounded up to whole blocks and the partial last one
  // "adaptive" is the engine's word for a target given as a ratio; the target does not adapt.
  TargetMode target_mode = TargetMode::kAdaptive;
  float target_keep_ratio = 0.5f;   // read in static mode
  float target_lossy_ratio = 3.0f;  // read in adaptive mode
  float ema_alpha = 0.9f;
  int64_t update_interval = 16;  // in tokens, or in layer calls for an engine that counts these
  int64_t trigger_min_tokens = 512;

  bool operator==(const BlockConfig&) const = default;
};

// Returns the values that the engine computes with. It clamps values and refuses none.
BlockConfig Sanitised(const BlockConfig& config);

// Returns the share of tokens to keep, in [0, 1], before the floor and rounding apply.
float TargetKeepShare(const BlockConfig& sanitised);

struct LayerRange {
  uint32_t first = 0, last = 0;  // both are in the range; it is empty if first > last
  bool Contains(uint32_t layer) const { return first <= layer && layer <= last; }
};
LayerRange EvictedLayers(const BlockConfig& sanitised, uint32_t layers);

// The number of tokens that the block rule keeps at a trigger. It depends on lengths only, never on
// scores.
struct BlockBudget {
  uint64_t length = 0;           // tokens in the cache, including the new one
  uint64_t floor = 0;            // tokens of sink and recent blocks
  uint64_t wanted = 0;           // tokens that the target asks for, before the floor applies
  uint64_t target = 0;           // max(wanted, floor)
  uint64_t quantised = 0;        // tokens of the floor and of whole blocks up to the target
  bool floor_dominates = false;  // floor >= wanted

  bool operator==(const BlockBudget&) const = default;
};

// Behaviour if the floor alone reaches the target: evict nothing, or everything between sink and
// recent blocks.
enum class FloorRule { kKeepAll, kKeepFloor };

struct BlockChoice {
  BlockBudget budget;
  uint64_t kept = 0;  // tokens that are kept; all of them if nothing is evicted
  uint64_t evicted = 0;
  KeepPlan plan;                      // indices into the cache; empty when nothing is evicted
  std::vector<uint32_t> kept_blocks;  // ascending; empty if the plan is
};

BlockBudget ComputeBlockBudget(const BlockConfig& sanitised, uint64_t length);
// Computes the budget for a target in tokens, in [1, length].
BlockBudget ComputeBlockBudget(const BlockConfig& sanitised, uint64_t length, uint64_t wanted);

// Makes one choice of the engine: keeps sink and recent blocks, then blocks by score until the
// quantised target is reached. Of equal scores the lower block wins (the engine's own sort is
// unstable there). A NaN ranks below every number. `scores` holds one value per block.
BlockChoice ChooseBlocks(const BlockConfig& sanitised, uint64_t length,
                         std::span<const double> scores, FloorRule floor_rule);

// Chooses blocks for a given budget, and spends it even if the floor dominates it.
BlockChoice KeepBlocks(const BlockConfig& sanitised, const BlockBudget& budget,
                       std::span<const double> scores);

}  // namespace kv::eviction
