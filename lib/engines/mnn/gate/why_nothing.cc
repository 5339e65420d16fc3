// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/why_nothing.h"

#include <fmt/format.h>

namespace kv::mnn {

std::string WhyNothingEvicted(const runtime::ReplayResult& row) {
  if (row.h2o_metrics.total_evict_tokens > 0) return {};
  if (!row.h2o_enabled) return "H2O is off";
  const eviction::LayerRange range =
      eviction::EvictedLayers(row.h2o, static_cast<uint32_t>(row.layers.size()));
  if (range.first > range.last)
    return "nothing was evicted: h2o_layer_start to h2o_layer_end hold no layer";
  if (row.end < static_cast<uint64_t>(row.h2o.trigger_min_tokens)) {
    return fmt::format(
        "nothing was evicted: the cache never reaches h2o_trigger_min_tokens {}, it ends at {}",
        row.h2o.trigger_min_tokens, row.end);
  }
  // Set by every decision, the fruitless ones included.
  if (row.h2o_metrics.floor_keep == 0) {
    return fmt::format("nothing was evicted: no trigger in {} decode steps, h2o_update_interval {}",
                       row.end - row.prompt, row.h2o.update_interval);
  }
  return fmt::format(
      "nothing was evicted: sink and recent blocks alone reach a target of {:.4g}x: "
      "h2o_sink_tokens "
      "{}, h2o_recent_tokens {}, h2o_block_tokens {}",
      1 / eviction::TargetKeepShare(row.h2o), row.h2o.sink_tokens, row.h2o.recent_tokens,
      row.h2o.block_tokens);
}

std::string WhyNothingCompressed(const runtime::ReplayResult& row) {
  if (row.measured.verified_blob_bytes > 0) return {};
  if (!row.lossless.active()) return "the lossless path is off";
  if (row.measured.encode_calls > 0) return "no range became smaller";
  const runtime::Config& config = row.lossless;
  if (config.scope == runtime::Scope::kNone) {
    return "nothing was compressed: h2o_lossless_scope is none";
  }
  const auto hot = static_cast<uint64_t>(config.hot_sink_tokens + config.hot_recent_tokens);
  if (row.end <= hot || row.end < static_cast<uint64_t>(row.h2o.trigger_min_tokens)) {
    return fmt::format(
        "nothing was compressed: the cache ends at {} tokens, and a cold range begins beyond "
        "h2o_lossless_hot_sink_tokens {} + h2o_lossless_hot_recent_tokens {} from "
        "h2o_trigger_min_tokens {} on",
        row.end, config.hot_sink_tokens, config.hot_recent_tokens, row.h2o.trigger_min_tokens);
  }
  return fmt::format(
      "nothing was compressed: no layer of h2o_lossless_scope {} grew a cold range as long as a "
      "first piece; sink {} and recent {} tokens stay out",
      runtime::Name(config.scope), config.hot_sink_tokens, config.hot_recent_tokens);
}

}  // namespace kv::mnn
