// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/study/eviction/rule.h"

namespace kv::eviction {

// sums[kv head][key] of weights of rows [begin, begin + row_weights.size()), query heads over
// threads, added to a kv head in head order.
std::vector<std::vector<double>> ColumnSums(LayerCaches& caches, uint64_t begin,
                                            std::span<const float> row_weights, WeightRule rule);

// Softmax weights of one row over the cache; keys it does not see are 0.
Scores RowWeights(const LayerCaches& caches, uint32_t head, uint64_t position);

}  // namespace kv::eviction
