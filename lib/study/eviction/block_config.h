// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace kv::eviction {

enum class TargetMode { kStatic = 0, kAdaptive = 1 };

// The parameters of the H2O block rule, which policy "block" follows, under MNN's names and with
// MNN's defaults. Ratios are float because the engine computes in float: 1 / 3.0f * n may exceed
// the exact integer and cost one token.
struct BlockConfig {
  int64_t layer_start = 2;
  int64_t layer_end = -1;  // negative: the last layer; the range includes both ends
  int64_t block_tokens = 64;
  int64_t sink_tokens = 32;     // rounded up to whole blocks
  int64_t recent_tokens = 256;  // rounded up to whole blocks and the partial last one
  // "adaptive" is the engine's word for a target given as a ratio; nothing adapts.
  TargetMode target_mode = TargetMode::kAdaptive;
  float target_keep_ratio = 0.5f;   // read in static mode
  float target_lossy_ratio = 3.0f;  // read in adaptive mode
  float ema_alpha = 0.9f;
  int64_t update_interval = 16;  // layer calls in engine mnn, tokens in exact and design
  int64_t trigger_min_tokens = 512;

  bool operator==(const BlockConfig&) const = default;
};

// Returns the values that the engine computes with. It clamps values and refuses none.
BlockConfig Sanitised(const BlockConfig& config);

// Returns the share of tokens to keep, in [0, 1], before the floor and rounding apply.
float TargetKeepShare(const BlockConfig& sanitised);

struct LayerRange {
  uint32_t first = 0, last = 0;  // inclusive; empty when first > last
  bool Contains(uint32_t layer) const { return first <= layer && layer <= last; }
};
LayerRange EvictedLayers(const BlockConfig& sanitised, uint32_t layers);

// Visits the parameters under the names of the engine's meta fields ("h2o_layer_start" ...).
void ForEachParameter(const BlockConfig& config,
                      const std::function<void(std::string_view name, double value)>& visit);
// Returns false if there is no such parameter.
bool SetParameter(std::string_view meta_name, double value, BlockConfig& config);

}  // namespace kv::eviction
