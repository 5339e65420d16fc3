// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <vector>

#include "lib/study/quantisation/replay.h"

// Searches for the types of each layer that save most within limits, from the figures of a replay.
namespace kv::quantisation {

struct SearchLimits {
  std::optional<double> loss;             // upper limit
  std::optional<double> bytes_per_token;  // upper limit
};

struct SearchPoint {
  std::vector<size_t> choice;  // index of the pair of each measured layer
  double bytes = 0, loss = 0;
};

struct SearchResult {
  bool is_nats = false;  // unit of a loss: nats, or the mean of 1 - cosine over layers
  // From the whole cache to the smallest one; each step saves bytes at the least loss per byte.
  std::vector<SearchPoint> path;
  std::vector<SearchPoint> uniform;       // one pair for all layers, in the order of the pairs
  std::optional<SearchPoint> best;        // empty if nothing on the path is within the limits
  std::optional<size_t> best_uniform;     // index of a pair
  std::optional<size_t> best_with_flags;  // the best of those that `has_flags` allows
};
// `has_flags[pair]` is true if an engine has flags for this pair.
SearchResult Search(const ReplayResult& result, const SearchLimits& limits,
                    const std::vector<bool>& has_flags);

}  // namespace kv::quantisation
