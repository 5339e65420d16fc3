// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The engine's state machine: the clock of layer calls, pending plans, scores, and the metrics that
// it exports.
#include "lib/engines/mnn/h2o/mnn_engine.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"

namespace kv::mnn::h2o {
namespace {

constexpr uint64_t kExpandChunk = 64;  // tokens that each growth of the buffer adds

float Ratio(uint64_t part, uint64_t whole) {
  return static_cast<float>(part) / static_cast<float>(std::max<uint64_t>(1, whole));
}

struct Parameter {
  std::string_view name;
  std::variant<int64_t eviction::BlockConfig::*, float eviction::BlockConfig::*,
               eviction::TargetMode eviction::BlockConfig::*>
      member;
};

constexpr Parameter kParameters[] = {
    {"h2o_layer_start", &eviction::BlockConfig::layer_start},
    {"h2o_layer_end", &eviction::BlockConfig::layer_end},
    {"h2o_block_tokens", &eviction::BlockConfig::block_tokens},
    {"h2o_sink_tokens", &eviction::BlockConfig::sink_tokens},
    {"h2o_recent_tokens", &eviction::BlockConfig::recent_tokens},
    {"h2o_target_mode", &eviction::BlockConfig::target_mode},
    {"h2o_target_keep_ratio", &eviction::BlockConfig::target_keep_ratio},
    {"h2o_target_lossy_ratio", &eviction::BlockConfig::target_lossy_ratio},
    {"h2o_ema_alpha", &eviction::BlockConfig::ema_alpha},
    {"h2o_update_interval", &eviction::BlockConfig::update_interval},
    {"h2o_trigger_min_tokens", &eviction::BlockConfig::trigger_min_tokens},
};

// Upper bound of parameters: far beyond any cache, and small enough that sums cannot overflow.
constexpr double kMost = static_cast<double>(int64_t{1} << 40);

int64_t Rounded(double value) {
  if (std::isnan(value)) return 0;
  return static_cast<int64_t>(std::clamp(value, -kMost, kMost));
}

}  // namespace

void ForEachParameter(const eviction::BlockConfig& config,
                      const std::function<void(std::string_view name, double value)>& visit) {
  for (const Parameter& parameter : kParameters) {
    std::visit([&](auto member) { visit(parameter.name, static_cast<double>(config.*member)); },
               parameter.member);
  }
}

bool SetParameter(std::string_view meta_name, double value, eviction::BlockConfig& config) {
  const auto* found = std::find_if(std::begin(kParameters), std::end(kParameters),
                                   [&](const Parameter& p) { return p.name == meta_name; });
  if (found == std::end(kParameters)) return false;
  if (const auto* whole = std::get_if<int64_t eviction::BlockConfig::*>(&found->member)) {
    config.** whole = Rounded(value);
  } else if (const auto* real = std::get_if<float eviction::BlockConfig::*>(&found->member)) {
    config.** real = static_cast<float>(value);
  } else {
    // The engine compares with 0 only; any other value means adaptive.
    config.target_mode =
        value == 0 ? eviction::TargetMode::kStatic : eviction::TargetMode::kAdaptive;
  }
  return true;
}

MnnEngine::MnnEngine(const eviction::BlockConfig& config, const MnnGeometry& geometry,
                     MnnRevision revision, uint64_t prompt_tokens)
    : config_(eviction::Sanitised(config)),
      geometry_(geometry),
      revision_(revision),
      range_(eviction::EvictedLayers(config_, geometry.layers)),
      layers_(geometry.layers),
      meta_previous_(prompt_tokens) {
  KV_ASSERT(geometry.layers > 0);
  for (Layer& layer : layers_) {
    layer.length = prompt_tokens;
    layer.capacity = prompt_tokens + kExpandChunk;
  }
}

uint64_t MnnEngine::blocks(uint64_t length) const {
  return CeilDiv(length, static_cast<uint64_t>(config_.block_tokens));
}

void MnnEngine::Truncate(uint32_t layer, uint64_t length) {
  KV_ASSERT(length <= layers_[layer].length);
  layers_[layer].length = length;
}

bool MnnEngine::DropPlan(uint32_t index) {
  Layer& layer = layers_[index];
  const bool had_plan = layer.pending_ready;
  layer.pending.clear();
  layer.pending_remove = 0;
  layer.pending_ready = false;
  return had_plan;
}

void MnnEngine::ApplyPending(Layer& layer, CallStart& start) {
  if (!layer.pending_ready) return;
  const bool fits = layer.pending_remove == layer.length && !layer.pending.empty() &&
                    IsApplicable(layer.pending, layer.pending_remove);
  start.plan_applied = fits;
  start.plan_dropped = !fits;
  if (fits) {
    start.applied = std::move(layer.pending);
    call_removed_ = layer.pending_remove;        // the engine removes the whole cache,
    call_reserved_ = KeptTokens(start.applied);  // except for what it reserves
    layer.length = call_reserved_;
  }
  layer.pending.clear();
  layer.pending_remove = 0;
  layer.pending_ready = false;
}

CallStart MnnEngine::Begin(uint64_t new_tokens) {
  KV_ASSERT(!in_call_);
  in_call_ = true;
  CallStart start;
  start.layer = static_cast<uint32_t>(cursor_ % geometry_.layers);
  start.global_step = ++cursor_;
  start.in_range = range_.Contains(start.layer);
  call_added_ = new_tokens;
  call_removed_ = call_reserved_ = 0;
  Layer& layer = layers_[start.layer];
  ++layer.steps;
  start.length_before = layer.length;
  ApplyPending(layer, start);
  start.length_compacted = layer.length;
  layer.length += new_tokens;
  start.length = layer.length;
  KV_ASSERT(layer.length <= UINT32_MAX);
  // The buffer grows beyond the new length and never shrinks.
  if (layer.length > layer.capacity) layer.capacity = layer.length + kExpandChunk;
  return start;
}

std::vector<float> MnnEngine::Accumulated(std::span<const float> block_sums, uint64_t query_rows,
                                          uint32_t layer) const {
  std::vector<float> scores = GetScores(layer);
  scores.resize(block_sums.size());  // new blocks start at 0, and surplus blocks are dropped
  const auto norm = static_cast<float>(
      std::max<uint64_t>(1, CheckedMul(geometry_.query_heads, query_rows, "heads x rows")));
  const float alpha = config_.ema_alpha;
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = alpha * scores[i] + (1.0f - alpha) * (block_sums[i] / norm);
  }
  return scores;
}

bool MnnEngine::IsDue(const Layer& layer) const {
  const uint64_t since = revision_ == MnnRevision::kDesign ? layer.steps - layer.last_trigger_step
                                                           : cursor_ - last_trigger_step_;
  return layer.length >= static_cast<uint64_t>(config_.trigger_min_tokens) &&
         since >= static_cast<uint64_t>(config_.update_interval);
}

void MnnEngine::Trigger(uint32_t index, std::vector<float>& scores, CallEnd& end) {
  Layer& layer = layers_[index];
  const uint64_t n = layer.length;
  end.decision =
      eviction::ChooseBlocks(config_, n, std::vector<double>(scores.begin(), scores.end()),
                             revision_ == MnnRevision::kFinal ? eviction::FloorRule::kKeepAll
                                                              : eviction::FloorRule::kKeepFloor);
  layer.pending = end.decision.plan;
  // The engine changes only if everything above succeeds.
  end.triggered = true;
  last_trigger_step_ = cursor_;
  layer.last_trigger_step = layer.steps;
  const eviction::BlockChoice& decision = end.decision;
  const bool keeps_all_by_floor =
      decision.budget.floor_dominates && revision_ == MnnRevision::kFinal;

  metrics_.last_evict_tokens = decision.evicted;
  metrics_.target_keep_effective = Ratio(decision.budget.target, n);
  metrics_.floor_keep = Ratio(decision.budget.floor, n);
  metrics_.quantized_keep = Ratio(decision.budget.quantised, n);
  // When the floor dominates, both figures keep the values of the last real compression.
  if (!keeps_all_by_floor) {
    const uint64_t ranges = decision.plan.empty() ? 1 : decision.plan.size();
    const uint64_t token_bytes = geometry_.bytes_per_token();
    // The published description counts only tokens, the code also its plan.
    const uint64_t plan_bytes = revision_ == MnnRevision::kDesign ? 0 : 4 * 2 * ranges;
    metrics_.keep_ratio = Ratio(decision.kept, n);
    metrics_.lossy_ratio = Ratio(n * token_bytes, decision.kept * token_bytes + plan_bytes);
  }
  layer.pending_ready = !decision.plan.empty();
  layer.pending_remove = layer.pending_ready ? n : 0;
  metrics_.total_evict_tokens += decision.evicted;
  if (decision.evicted > 0) {
    for (size_t i = 0; i < decision.kept_blocks.size(); ++i) {
      scores[i] = scores[decision.kept_blocks[i]];
    }
    scores.resize(decision.kept_blocks.size());
  }
}

CallEnd MnnEngine::Finish(std::span<const float> block_sums, uint64_t query_rows) {
  KV_ASSERT(in_call_);
  const auto index = static_cast<uint32_t>((cursor_ - 1) % geometry_.layers);
  Layer& layer = layers_[index];
  CallEnd end;
  end.final_keep_tokens = layer.length;
  if (range_.Contains(index)) {
    KV_ASSERT(block_sums.size() == blocks(layer.length));
    std::vector<float> scores = Accumulated(block_sums, query_rows, index);
    end.ema_scores = scores;
    if (IsDue(layer)) {
      Trigger(index, scores, end);
      end.final_keep_tokens = end.decision.kept;
    } else {
      // The ratio is the last plan's, even for layers that it was not made for.
      const float kept = std::round(metrics_.keep_ratio * static_cast<float>(layer.length));
      end.final_keep_tokens = std::max<uint64_t>(1, static_cast<uint64_t>(kept));
    }
    GetScores(index) = std::move(scores);
  }
  in_call_ = false;
  if (index + 1 == geometry_.layers) {
    meta_previous_ = meta_previous_ + call_added_ - call_removed_ + call_reserved_;
  }
  return end;
}

}  // namespace kv::mnn::h2o
