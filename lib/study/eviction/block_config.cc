// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/block_config.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace kv::eviction {
namespace {

// Far beyond any cache, small enough that sums of parameters cannot overflow.
constexpr int64_t kMost = int64_t{1} << 40;

int64_t AtLeast(int64_t least, int64_t value) { return std::clamp(value, least, kMost); }

// A NaN parameter counts as the lower bound.
float Within(float low, float high, float value) {
  return value > low ? std::min(value, high) : low;
}

struct Parameter {
  std::string_view name;
  std::variant<int64_t BlockConfig::*, float BlockConfig::*, TargetMode BlockConfig::*> member;
};

constexpr Parameter kParameters[] = {
    {"h2o_layer_start", &BlockConfig::layer_start},
    {"h2o_layer_end", &BlockConfig::layer_end},
    {"h2o_block_tokens", &BlockConfig::block_tokens},
    {"h2o_sink_tokens", &BlockConfig::sink_tokens},
    {"h2o_recent_tokens", &BlockConfig::recent_tokens},
    {"h2o_target_mode", &BlockConfig::target_mode},
    {"h2o_target_keep_ratio", &BlockConfig::target_keep_ratio},
    {"h2o_target_lossy_ratio", &BlockConfig::target_lossy_ratio},
    {"h2o_ema_alpha", &BlockConfig::ema_alpha},
    {"h2o_update_interval", &BlockConfig::update_interval},
    {"h2o_trigger_min_tokens", &BlockConfig::trigger_min_tokens},
};

int64_t Whole(double value) {
  if (std::isnan(value)) return 0;
  return static_cast<int64_t>(
      std::clamp(value, -static_cast<double>(kMost), static_cast<double>(kMost)));
}

}  // namespace

BlockConfig Sanitised(const BlockConfig& config) {
  BlockConfig c = config;
  c.layer_start = AtLeast(0, c.layer_start);
  c.layer_end = AtLeast(-1, c.layer_end);
  c.block_tokens = AtLeast(1, c.block_tokens);
  c.sink_tokens = AtLeast(0, c.sink_tokens);
  c.recent_tokens = AtLeast(0, c.recent_tokens);
  c.target_keep_ratio = Within(0.0f, 1.0f, c.target_keep_ratio);
  c.target_lossy_ratio = Within(1.0f, INFINITY, c.target_lossy_ratio);
  c.ema_alpha = Within(0.0f, 1.0f, c.ema_alpha);
  c.update_interval = AtLeast(1, c.update_interval);
  c.trigger_min_tokens = AtLeast(1, c.trigger_min_tokens);
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

void ForEachParameter(const BlockConfig& config,
                      const std::function<void(std::string_view name, double value)>& visit) {
  for (const Parameter& parameter : kParameters) {
    std::visit([&](auto member) { visit(parameter.name, static_cast<double>(config.*member)); },
               parameter.member);
  }
}

bool SetParameter(std::string_view meta_name, double value, BlockConfig& config) {
  const auto* found = std::find_if(std::begin(kParameters), std::end(kParameters),
                                   [&](const Parameter& p) { return p.name == meta_name; });
  if (found == std::end(kParameters)) return false;
  if (const auto* whole = std::get_if<int64_t BlockConfig::*>(&found->member)) {
    config.** whole = Whole(value);
  } else if (const auto* real = std::get_if<float BlockConfig::*>(&found->member)) {
    config.** real = static_cast<float>(value);
  } else {
    // The engine knows 0; anything else is adaptive.
    config.target_mode = value == 0 ? TargetMode::kStatic : TargetMode::kAdaptive;
  }
  return true;
}

}  // namespace kv::eviction
