// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/snapshot/snapshot.h"
#include "lib/study/attention/probabilities.h"

// Measures what a smaller cache costs in attention, compared with the full one: per (layer, head),
// from queries and keys or from recorded probabilities. One call is one head and a pure function,
// so callers may spread heads over threads. Query rows are processed in tiles, so the whole
// probability matrix is never in memory.
namespace kv {

// The numbers k for which top-k figures are computed.
inline constexpr std::array<uint32_t, 3> kTopK = {8, 16, 64};

// A kept set that may shrink from query to query: key j is visible to queries at positions below
// kept_before[j]. UINT32_MAX means that the key is kept to the end, 0 that it is never kept.
// Queries without positions come after all others.
using KeptBefore = std::span<const uint32_t>;

// One value per query row; every figure is NaN in rows whose scores are not all finite. P is the
// full cache's distribution and o its output, P' and o' are those of the changed cache. "Kept" keys
// of the full cache are those that are single keys in the changed one.
struct AttentionRows {
  std::vector<double> mass;          // sum of P over kept keys
  std::vector<double> changed_mass;  // sum of P' over keys that represent one token
  // KL(P' || P), with P summed over the tokens that a changed key represents.
  std::vector<double> kl;
  std::vector<double> js;                               // Jensen-Shannon divergence of P and P'
  std::array<std::vector<double>, kTopK.size()> top_k;  // share of P's k largest that is kept
  std::vector<uint8_t> evicting;                        // 1 if some visible key is not kept
  // Squared norms and dot products, which add up over heads (outputs are concatenated): of o - o',
  // of o, of o', and o.o'. Empty without V.
  std::vector<double> error2, norm2, changed_norm2, dot;
  // [sample][row]: g . (o' - o) for each gradient g given, which adds up over heads and layers;
  // empty without gradients. NaN also where g is not finite.
  std::vector<std::vector<double>> log_p_change;

  uint64_t rows() const { return mass.size(); }
  bool has_output() const { return !error2.empty(); }
};

// Gradients of the log probabilities of sampled next tokens with respect to a head's outputs, one
// matrix per sample: query rows x columns of V. To first order, their products with a change of the
// outputs are the changes of those log probabilities. Without V they are ignored.
using OutputGradients = std::span<const FloatMatrix>;

// Compares the full cache with caches that have only the keys of a kept set, for several sets at
// once: P, o and the largest keys are computed once. Returns one result per set, in their order.
// The softmax over a subset is the renormalised full one, so P' = P / M: KL is -ln M exactly, and a
// row that loses nothing has exactly mass 1, error 0 and KL 0. A row that keeps nothing has o' = 0
// and KL = infinity.
std::vector<AttentionRows> CompareKeptSets(const HeadQueries& queries, const HeadCache& full,
                                           std::span<const KeptBefore> sets,
                                           const AttentionRule& rule = {},
                                           OutputGradients gradients = {});
// Does the same from recorded probabilities, [query][key], 0 for hidden keys, in rows that the
// caller has normalised. `positions` are those of the rows.
std::vector<AttentionRows> CompareKeptSetsProbabilities(const FloatMatrix& probabilities,
                                                        std::span<const int64_t> positions,
                                                        const FloatMatrix& v,
                                                        std::span<const KeptBefore> sets,
                                                        OutputGradients gradients = {});

// Compares the full cache with one that may differ in every value. `sources[j]` gives the tokens of
// the full cache that key j represents: ranges do not overlap, and tokens in no range were dropped.
// The changed side has its own queries, as many rows, because another convention of positions
// rotates them differently.
AttentionRows CompareCaches(const HeadQueries& queries, const HeadCache& full,
                            const HeadQueries& changed_queries, const HeadCache& changed,
                            std::span<const TokenRange> sources, const AttentionRule& rule = {},
                            OutputGradients gradients = {});

// Appends rows of the same head; they follow those in `to`.
void AppendRows(const AttentionRows& from, AttentionRows& to);

}  // namespace kv
