// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/block_choice.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"

namespace kv::eviction {
namespace {

// Upper bound of parameters: far beyond any cache, and small enough that sums cannot overflow.
constexpr int64_t kMost = int64_t{1} << 40;

int64_t Raised(int64_t least, int64_t value) { return std::clamp(value, least, kMost); }

// A NaN parameter counts as the lower bound.
float Within(float low, float high, float value) {
  return value > low ? std::min(value, high) : low;
}

struct Blocks {
  uint64_t length, tokens_per_block, count;

  Blocks(const BlockConfig& config, uint64_t n)
      : length(n),
        tokens_per_block(static_cast<uint64_t>(config.block_tokens)),
        count(CeilDiv(n, tokens_per_block)) {}
  uint64_t begin(uint64_t block) const { return block * tokens_per_block; }
  uint64_t size(uint64_t block) const {
    return std::min(length, begin(block) + tokens_per_block) - begin(block);
  }
};

// Sink blocks [0, sink) and recent blocks [recent, count); they may overlap.
struct Protected {
  uint64_t sink, recent;
  bool Contains(uint64_t block) const { return block < sink || block >= recent; }
};

Protected ProtectedBlocks(const BlockConfig& config, const Blocks& blocks) {
  const uint64_t n = blocks.length;
  const uint64_t sink = std::min(n, static_cast<uint64_t>(config.sink_tokens));
  const uint64_t recent = std::min(n, static_cast<uint64_t>(config.recent_tokens));
  return {CeilDiv(sink, blocks.tokens_per_block), (n - recent) / blocks.tokens_per_block};
}

bool Better(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a > b; }

}  // namespace

BlockConfig Sanitised(const BlockConfig& config) {
  BlockConfig c = config;
  c.layer_start = Raised(0, c.layer_start);
  c.layer_end = Raised(-1, c.layer_end);
  c.block_tokens = Raised(1, c.block_tokens);
  c.sink_tokens = Raised(0, c.sink_tokens);
  c.recent_tokens = Raised(0, c.recent_tokens);
  c.target_keep_ratio = Within(0.0f, 1.0f, c.target_keep_ratio);
  c.target_lossy_ratio = Within(1.0f, INFINITY, c.target_lossy_ratio);
  c.ema_alpha = Within(0.0f, 1.0f, c.ema_alpha);
  c.update_interval = Raised(1, c.update_interval);
  c.trigger_min_tokens = Raised(1, c.trigger_min_tokens);
  return c;
}

float TargetKeepShare(const BlockConfig& sanitised) {
  return sanitised.target_mode == TargetMode::kStatic ? sanitised.target_keep_ratio
                                                      : 1.0f / sanitised.target_lossy_ratio;
}

LayerRange EvictedLayers(const BlockConfig& sanitised, uint32_t layers) {
  if (layers == 0) return {1, 0};
  const int64_t top = layers - 1;
  const int64_t first = std::min(sanitised.layer_start, top);
  const int64_t last = sanitised.layer_end < 0 ? top : std::min(sanitised.layer_end, top);
  if (first > last) return {1, 0};
  return {static_cast<uint32_t>(first), static_cast<uint32_t>(last)};
}

BlockBudget ComputeBlockBudget(const BlockConfig& config, uint64_t length, uint64_t wanted) {
  const Blocks blocks(config, length);
  const Protected kept = ProtectedBlocks(config, blocks);
  BlockBudget budget;
  budget.length = length;
  if (length == 0) return budget;
  const uint64_t sink_end = std::min(length, blocks.begin(kept.sink));
  const uint64_t recent_begin = std::min(length, blocks.begin(kept.recent));
  budget.floor = sink_end >= recent_begin ? length : sink_end + (length - recent_begin);
  budget.wanted = wanted;
  budget.floor_dominates = budget.floor >= budget.wanted;
  budget.target = std::max(budget.wanted, budget.floor);
  budget.quantised = budget.floor;
  if (budget.floor < budget.target) {
    const uint64_t more = RoundUp(budget.target - budget.floor, blocks.tokens_per_block);
    budget.quantised = std::min(length, budget.floor + more);
  }
  return budget;
}

BlockBudget ComputeBlockBudget(const BlockConfig& config, uint64_t length) {
  if (length == 0) return {};
  // The product is computed in float, as in the engine, so it may round up past an exact integer.
  const float wanted = std::ceil(TargetKeepShare(config) * static_cast<float>(length));
  return ComputeBlockBudget(config, length,
                            std::clamp<uint64_t>(static_cast<uint64_t>(wanted), 1, length));
}

BlockChoice ChooseBlocks(const BlockConfig& config, uint64_t length, std::span<const double> scores,
                         FloorRule floor_rule) {
  const BlockBudget budget = ComputeBlockBudget(config, length);
  if (length != 0 && (!budget.floor_dominates || floor_rule == FloorRule::kKeepFloor)) {
    return KeepBlocks(config, budget, scores);
  }
  KV_ASSERT(scores.size() == Blocks(config, length).count);
  BlockChoice decision;
  decision.budget = budget;
  decision.kept = length;
  return decision;
}

BlockChoice KeepBlocks(const BlockConfig& config, const BlockBudget& budget,
                       std::span<const double> scores) {
  const uint64_t length = budget.length;
  const Blocks blocks(config, length);
  KV_ASSERT(scores.size() == blocks.count);
  const Protected always = ProtectedBlocks(config, blocks);
  std::vector<bool> keep(blocks.count);
  std::vector<uint32_t> candidates;
  for (uint64_t b = 0; b < blocks.count; ++b) {
    keep[b] = always.Contains(b);
    if (!keep[b]) candidates.push_back(static_cast<uint32_t>(b));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](uint32_t a, uint32_t b) { return Better(scores[a], scores[b]); });
  uint64_t kept = budget.floor;
  for (const uint32_t block : candidates) {
    if (kept >= budget.quantised) break;
    keep[block] = true;
    kept += blocks.size(block);
  }
  BlockChoice decision;
  decision.budget = budget;
  decision.kept = kept;
  decision.evicted = length - kept;
  if (decision.evicted == 0 || kept == 0) return decision;
  for (uint64_t b = 0; b < blocks.count; ++b) {
    if (!keep[b]) continue;
    decision.kept_blocks.push_back(static_cast<uint32_t>(b));
    Append(decision.plan,
           {static_cast<uint32_t>(blocks.begin(b)), static_cast<uint32_t>(blocks.size(b))});
  }
  return decision;
}

}  // namespace kv::eviction
