// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/why_nothing.h"

#include <fmt/format.h>

#include <algorithm>

namespace kv::gate {

std::string WhyNothingEvicted(const lossless::ReplayResult& row) {
  if (row.h2o_metrics.total_evict_tokens > 0) return {};
  if (!row.h2o_enabled) return "H2O is off";
  const h2o::LayerRange range =
      h2o::EvictedLayers(row.h2o, static_cast<uint32_t>(row.layers.size()));
  if (range.first > range.last)
    return "nothing was evicted: h2o_layer_start to h2o_layer_end hold no layer";
  if (row.end < static_cast<uint64_t>(row.h2o.trigger_min_tokens)) {
    return fmt::format(
        "nothing was evicted: the cache never reaches h2o_trigger_min_tokens {}, it ends at {}",
        row.h2o.trigger_min_tokens, row.end);
  }
  if (std::none_of(row.events.begin(), row.events.end(), [](const lossless::Event& event) {
        return event.kind == lossless::EventKind::kEvict;
      })) {
    return fmt::format("nothing was evicted: no trigger in {} decode steps, h2o_update_interval {}",
                       row.end - row.prompt, row.h2o.update_interval);
  }
  return fmt::format(
      "nothing was evicted: sink and recent blocks alone reach the target: h2o_sink_tokens {}, "
      "h2o_recent_tokens {}, h2o_block_tokens {}",
      row.h2o.sink_tokens, row.h2o.recent_tokens, row.h2o.block_tokens);
}

std::string WhyNothingCompressed(const lossless::ReplayResult& row) {
  if (row.measured.verified_blob_bytes > 0) return {};
  if (!row.lossless.active()) return "the lossless path is off";
  if (row.measured.encode_calls > 0) return "no range became smaller";
  return fmt::format(
      "nothing was compressed: the cache ends at {} tokens, and a cold range begins beyond "
      "h2o_lossless_hot_sink_tokens {} + h2o_lossless_hot_recent_tokens {} from "
      "h2o_trigger_min_tokens {} on",
      row.end, row.lossless.hot_sink_tokens, row.lossless.hot_recent_tokens,
      row.h2o.trigger_min_tokens);
}

}  // namespace kv::gate
