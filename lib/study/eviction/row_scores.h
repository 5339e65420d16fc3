// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/study/eviction/rule.h"

namespace kv::eviction {

// Returns [kv head][key]: the weights of rows [begin, begin + row_weights.size()), each row times
// its `row_weights`, summed. Query heads run on several threads and are added in head order.
HeadSums ColumnSums(LayerCaches& caches, uint64_t begin, std::span<const float> row_weights,
                    WeightRule rule);

// Returns the softmax weights of one row over the cache; keys that it does not see have 0.
Scores RowWeights(const LayerCaches& caches, uint32_t head, uint64_t position);

}  // namespace kv::eviction
