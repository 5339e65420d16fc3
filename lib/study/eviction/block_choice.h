// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/core/snapshot/keep_plan.h"
#include "lib/study/eviction/block_config.h"

namespace kv::eviction {

// How many tokens the block rule keeps at a trigger. This depends on lengths only, never on scores.
struct BlockBudget {
  uint64_t length = 0;           // tokens in the cache, including the new one
  uint64_t floor = 0;            // tokens of sink and recent blocks
  uint64_t wanted = 0;           // tokens that the target asks for, before the floor
  uint64_t target = 0;           // max(wanted, floor)
  uint64_t quantised = 0;        // the floor and whole blocks up to the target
  bool floor_dominates = false;  // floor >= wanted

  bool operator==(const BlockBudget&) const = default;
};

// What to do if the floor alone reaches the target. MNN's final branch evicts nothing then; the
// measured build (R6) evicted everything between sink and recent blocks.
enum class FloorRule { kKeepAll, kKeepFloor };

struct BlockChoice {
  BlockBudget budget;
  uint64_t kept = 0;  // tokens that stay; all of them if nothing is evicted
  uint64_t evicted = 0;
  KeepPlan plan;                      // indices into the cache; empty when nothing is evicted
  std::vector<uint32_t> kept_blocks;  // ascending; empty if the plan is
};

BlockBudget BlockBudgetOf(const BlockConfig& sanitised, uint64_t length);
// The same for a target in tokens, in [1, length].
BlockBudget BlockBudgetOf(const BlockConfig& sanitised, uint64_t length, uint64_t wanted);

// Makes one choice of the engine: keeps sink and recent blocks, then blocks by score until the
// quantised target is reached. Of equal scores the lower block wins (the engine's own sort is
// unstable there). A NaN ranks below every number. `scores` holds one value per block.
BlockChoice ChooseBlocks(const BlockConfig& sanitised, uint64_t length,
                         std::span<const double> scores, FloorRule floor_rule);

// Chooses blocks for a given budget, and spends it even if the floor dominates it.
BlockChoice KeepBlocks(const BlockConfig& sanitised, const BlockBudget& budget,
                       std::span<const double> scores);

}  // namespace kv::eviction
