// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tables and charts of the statistics of a cache.
#pragma once

#include <optional>
#include <vector>

#include "lib/report/html.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv {

struct LayerStats {
  uint32_t layer = 0;
  std::optional<TensorStats> k = {}, v = {};
};

// Returns a table with a row for each tensor.
TextTable StatsTable(const std::vector<LayerStats>& layers);
// Adds the statistics of a cache to a page: entropies, ratios and ranges by layer, then a table.
void AddStats(const std::vector<LayerStats>& layers, report::Page& page);
// Adds only the chart of the entropies.
void AddPlaneEntropies(const std::vector<LayerStats>& layers, report::Page& page);

}  // namespace kv
