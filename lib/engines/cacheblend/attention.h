// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Measures the cost of blending in attention, and how much a bottom-right mask leaks of later
// tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/engines/cacheblend/cache_pair.h"

namespace kv::blend {

// The cost of blending in attention, measured with the queries of the full run. P and O are the
// probabilities and outputs over the full run's keys and values. P' and O' are those over the
// blended ones: the full run's rows where tokens were recomputed, the chunks' rows elsewhere.
struct AttentionError {
  double dev_l2 = 0;        // |P - P'| over heads, rows and columns
  double out_rel_l2 = 0;    // |O - O'| / |O| over rows and heads
  double out_cos_mean = 1;  // mean over rows of cos(O, O'), all heads concatenated
};

enum class Mask {
  kExact,  // a recomputed query sees the keys that a prefill would show it
  // the last of n rows sees all T keys and each earlier row one less, as both engines' kernels
  // align partial queries
  kBottomRight,
};

// The queries and how their attention is computed.
struct QueryRows {
  const AttentionTrace* trace = nullptr;
  const TraceLayer* layer = nullptr;

  bool Has(uint64_t position) const {
    return position >= trace->q_start && position < trace->end_position();
  }
};

// Measures the attention of the queries at positions [begin, T) for several sets of recomputed
// tokens, each one byte per token. Returns one error per set. `layer` is an index into
// CachePair::layers().
std::vector<AttentionError> MeasureAttention(const CachePair& caches, const QueryRows& queries,
                                             size_t layer, uint64_t begin,
                                             std::span<const std::vector<uint8_t>> recomputed,
                                             ThreadPool& pool);

// The attention of the recomputed tokens' own queries over blended keys, and what the bottom-right
// mask leaks of later tokens.
struct LeakError {
  uint64_t queries = 0;  // number of queries measured
  // mean share that the bottom-right mask gives to keys of later tokens
  double leaked_mass_mean = 0;
  // outputs under the bottom-right mask against those under the exact mask
  double leak_out_rel_l2 = 0;
  AttentionError against_full;  // under the requested mask, against the full run
};
// Largest number of queries measured, evenly spread.
inline constexpr uint64_t kMostLeakQueries = 64;

// Measures one layer. `imp` are the recomputed tokens, ascending. `keys` is the number of keys that
// the engine passes to the kernel: the prompt's or the blender's.
LeakError MeasureLeak(const CachePair& caches, const QueryRows& queries, size_t layer,
                      std::span<const uint64_t> imp, uint64_t keys, Mask mask, ThreadPool& pool);
// Returns how many keys of later tokens the bottom-right mask shows to the query of each token in
// `imp`.
std::vector<uint64_t> ExtraKeys(std::span<const uint64_t> imp, uint64_t tokens);

}  // namespace kv::blend
