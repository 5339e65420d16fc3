// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/core/snapshot/keep_plan.h"
#include "lib/study/eviction/block_config.h"

namespace kv::eviction {

// How many tokens a trigger keeps. It depends on lengths only, never on scores.
struct BlockBudget {
  uint64_t length = 0;           // tokens in the cache, the new one included
  uint64_t floor = 0;            // sink and recent blocks
  uint64_t wanted = 0;           // the target ratio's tokens, before the floor
  uint64_t target = 0;           // max(wanted, floor)
  uint64_t quantised = 0;        // floor and whole blocks up to the target
  bool floor_dominates = false;  // floor >= wanted

  bool operator==(const BlockBudget&) const = default;
};

// What to do when the floor alone reaches the target: the final branch then evicts nothing, the
// measured build (R6) evicted everything between sink and recent.
enum class FloorRule { kKeepAll, kKeepFloor };

struct BlockChoice {
  BlockBudget budget;
  uint64_t kept = 0;  // tokens that stay; all of them when nothing is evicted
  uint64_t evicted = 0;
  KeepPlan plan;                      // indices into the cache; empty when nothing is evicted
  std::vector<uint32_t> kept_blocks;  // ascending; with the plan
};

BlockBudget BlockBudgetOf(const BlockConfig& sanitised, uint64_t length);
// The same with a target in tokens, of [1, length].
BlockBudget BlockBudgetOf(const BlockConfig& sanitised, uint64_t length, uint64_t wanted);

// One decision of the engine: sink and recent blocks first, then blocks by score until the
// quantised target is reached. Equal scores go to the lower block; the engine's own sort is
// unstable there. A NaN ranks below every number. `scores` holds one value per block.
BlockChoice ChooseBlocks(const BlockConfig& sanitised, uint64_t length,
                         std::span<const double> scores, FloorRule floor_rule);

// The choice alone: the budget is spent whatever dominates it.
BlockChoice KeepBlocks(const BlockConfig& sanitised, const BlockBudget& budget,
                       std::span<const double> scores);

}  // namespace kv::eviction
