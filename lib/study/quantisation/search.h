// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <vector>

#include "lib/study/quantisation/replay.h"

// Searches for the types of each layer that save most within a loss, by what a replay measured.
namespace kv::quantisation {

struct SearchLimits {
  std::optional<double> loss;             // at most
  std::optional<double> bytes_per_token;  // at most
};

struct SearchPoint {
  std::vector<size_t> choice;  // the pair of each measured layer
  double bytes = 0, loss = 0;
};

struct SearchResult {
  bool is_nats = false;  // what a loss is: nats, or the mean of 1 - cosine over layers
  // From the whole cache to the smallest one; each step saves bytes at the least loss per byte.
  std::vector<SearchPoint> path;
  std::vector<SearchPoint> uniform;       // one pair for all layers, in the order of the pairs
  std::optional<SearchPoint> best;        // nothing on the path is within the limits: none
  std::optional<size_t> best_uniform;     // a pair
  std::optional<size_t> best_with_flags;  // of those that `has_flags` allows
};
// `has_flags[pair]` says whether an engine can be told this pair.
SearchResult Search(const ReplayResult& result, const SearchLimits& limits,
                    const std::vector<bool>& has_flags);

}  // namespace kv::quantisation
