// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/engines/cacheblend/cache_pair.h"

namespace kv::blend {

// What blending costs in attention, from the queries of the full run. P and O are the probabilities
// and outputs over the full keys and values, P' and O' over blended ones: the full run's rows where
// tokens were recomputed, the chunks' elsewhere.
struct AttentionError {
  double dev_l2 = 0;        // |P - P'| over heads, rows and columns
  double out_rel_l2 = 0;    // |O - O'| / |O| over rows and heads
  double out_cos_mean = 1;  // of a row's outputs, all heads concatenated
};

enum class Mask {
  kExact,        // a recomputed query sees what a prefill would show it
  kBottomRight,  // row i of n sees i + T - n keys, as both engines' kernels align partial queries
};

// The queries and how their attention is computed.
struct QueryRows {
  const AttentionTrace* trace = nullptr;
  const TraceLayer* layer = nullptr;

  bool Has(uint64_t position) const {
    return position >= trace->q_start && position < trace->end_position();
  }
};

// The attention of queries at positions [begin, T) for several sets of recomputed tokens (one byte
// per token each).
std::vector<AttentionError> MeasureAttention(const CachePair& caches, const QueryRows& queries,
                                             size_t layer, uint64_t begin,
                                             std::span<const std::vector<uint8_t>> recomputed,
                                             ThreadPool& pool);

// Attention of the recomputed tokens' own queries over blended keys.
struct LeakError {
  uint64_t queries = 0;         // measured: at most kMostLeakQueries, evenly spread
  double leaked_mass_mean = 0;  // of the bottom-right mask: what falls on keys of the future
  double leak_out_rel_l2 = 0;   // its outputs against those of the exact mask
  AttentionError against_full;  // with the mask asked for, against the full run
};
inline constexpr uint64_t kMostLeakQueries = 64;

// `keys`: how many the engine hands to the kernel, the prompt's or the blender's.
LeakError MeasureLeak(const CachePair& caches, const QueryRows& queries, size_t layer,
                      std::span<const uint64_t> imp, uint64_t keys, Mask mask, ThreadPool& pool);
// Keys of the future that the bottom-right mask shows to each of these queries.
std::vector<uint64_t> ExtraKeys(std::span<const uint64_t> imp, uint64_t tokens);

}  // namespace kv::blend
