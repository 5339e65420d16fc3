// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/snapshot/token_range.h"
#include "lib/study/statistics/distribution.h"

namespace kv {

// What a smaller cache costs in attention, measured against the full one: per (layer, head), from
// queries and keys or from recorded probabilities. Pure functions: one call is one head, callers
// spread heads over threads, and the same inputs give the same bits for every thread count.
// Softmax and all sums are in double and in index order; scores and outputs come from float GEMMs
// over tiles of queries, so a whole probability matrix never exists.

// A row-major float matrix somewhere in memory; owns nothing.
struct FloatMatrix {
  const float* data = nullptr;
  uint64_t rows = 0, columns = 0;
  uint64_t stride = 0;  // floats from row to row

  const float* row(uint64_t i) const { return data + i * stride; }
  bool empty() const { return data == nullptr || rows == 0; }
};
inline FloatMatrix MatrixOf(std::span<const float> values, uint64_t rows, uint64_t columns) {
  return {values.data(), rows, columns, columns};
}

// How scores become probabilities: softmax(softcap(scale * q.k) + bias) over visible keys.
struct AttentionRule {
  double scale = 0;     // 0: 1 / sqrt(columns of K)
  double softcap = 0;   // 0: none; else cap * tanh(score / cap)
  uint64_t window = 0;  // 0: none; else key j is visible to query i only if i - j < window
};

// The cache as one head sees it. Without V (empty) the output metrics are absent.
struct HeadCache {
  FloatMatrix k, v;
  std::span<const int64_t> positions;  // of the keys, in the causal order; empty: key j at j
  std::span<const float> bias;         // added to each key's score; empty: none
};

// Query rows; row i sees the keys at positions <= positions[i]. Empty positions: all keys.
struct HeadQueries {
  FloatMatrix q;
  std::span<const int64_t> positions;
};

inline constexpr std::array<uint32_t, 3> kTopK = {8, 16, 64};

// A kept set that may shrink from query to query: key j is there for queries at positions below
// kept_before[j]. Kept to the end: UINT32_MAX; never kept: 0. Queries without positions come last.
using KeptBefore = std::span<const uint32_t>;

// One value per query row. Rows whose scores are not all finite (NaN or Inf in queries or keys) are
// NaN in every figure. P is the full cache's distribution, P' the changed one's, o and o' the
// outputs; "kept" keys of the full cache are those that stand for themselves in the changed one.
struct AttentionRows {
  std::vector<double> mass;          // M: sum of P over kept keys
  std::vector<double> changed_mass;  // sum of P' over keys that stand for themselves
  std::vector<double> kl;  // KL(P' || P), P summed over the tokens that a changed key stands for
  std::vector<double> js;  // Jensen-Shannon divergence of the same two
  std::array<std::vector<double>, kTopK.size()> top_k;  // share of P's k largest that is kept
  std::vector<uint8_t> evicting;                        // some visible key is not kept
  // Squared norms and products, which add up over heads (outputs are concatenated): of o - o', o,
  // o', and o.o'. Empty without V.
  std::vector<double> error2, norm2, changed_norm2, dot;

  uint64_t rows() const { return mass.size(); }
  bool has_output() const { return !error2.empty(); }
};

// The cache with only the keys whose byte in `kept` is not zero. Softmax over a subset is the
// renormalised full one, so P' = P / M: KL = -ln M exactly, and a row that loses nothing has
// mass 1, error 0, KL 0 exactly. A row that keeps nothing has o' = 0 and KL = infinity.
AttentionRows CompareKept(const HeadQueries& queries, const HeadCache& full,
                          std::span<const uint8_t> kept, const AttentionRule& rule = {});

// The same from recorded probabilities, [query][key], hidden keys 0, rows normalised by the caller.
AttentionRows CompareKeptProbabilities(const FloatMatrix& probabilities, const FloatMatrix& v,
                                       std::span<const uint8_t> kept);

// Several kept sets at once: P, o and the largest keys are computed once. One result per set.
std::vector<AttentionRows> CompareKeptSets(const HeadQueries& queries, const HeadCache& full,
                                           std::span<const KeptBefore> sets,
                                           const AttentionRule& rule = {});
std::vector<AttentionRows> CompareKeptSetsProbabilities(const FloatMatrix& probabilities,
                                                        std::span<const int64_t> positions,
                                                        const FloatMatrix& v,
                                                        std::span<const KeptBefore> sets);

// A cache that may differ in every value: `sources[j]` says which tokens of the full cache key j
// stands for (ranges do not overlap; tokens in no range were dropped). The changed side has its own
// queries (same number of rows), because a changed position convention rotates them differently.
AttentionRows CompareCaches(const HeadQueries& queries, const HeadCache& full,
                            const HeadQueries& changed_queries, const HeadCache& changed,
                            std::span<const TokenRange> sources, const AttentionRule& rule = {});

// P itself for rows [begin, begin + count) of the queries: count x keys doubles, hidden keys 0.
// Rows that see no key are all zero.
void AttentionProbabilities(const HeadQueries& queries, const HeadCache& cache,
                            const AttentionRule& rule, uint64_t begin, uint64_t count,
                            std::span<double> out);

// Of some query rows. A row is one query of one layer, all its heads; it evicts if one of them
// loses a key that it gave weight to. Where NaN or Inf in queries, keys or values leaves a row
// without figures, it is counted and left out of them.
struct AttentionSummary {
  uint64_t rows = 0;
  uint64_t evicting_rows = 0;   // of these
  uint64_t undefined_rows = 0;  // of these: some figure of some head is NaN
  bool has_output = false;
  // Values of heads, pooled: rows x heads samples.
  Distribution mass, changed_mass, kl, js;
  std::array<Distribution, kTopK.size()> top_k;
  Distribution output_error;          // |o - o'| / max(|o|, 1e-12), heads concatenated
  Distribution output_cosine;         // o.o' / (|o| |o'|), heads concatenated
  double output_error_frobenius = 0;  // |O - O'| / |O| over all rows
  // Of the means, where the rows are a random sample; 0 where they are all there are.
  struct StandardErrors {
    double mass = 0, kl = 0, js = 0, output_error = 0, output_cosine = 0;
    std::array<double, kTopK.size()> top_k = {};
  } standard_error;
};

// Standard error of a mean over values that come in clusters, of which a simple random sample was
// drawn without replacement: the heads of a query row, in every layer, stand or fall together.
// Clusters without a value count, as in any estimate of a part of the population. NaN for fewer
// than two clusters, unless the sample is the population.
class ClusterError {
 public:
  void Add(uint64_t cluster, double value);  // NaN is left out
  double Get(uint64_t clusters, uint64_t population) const;

 private:
  struct Sum {
    double value = 0, count = 0;
  };
  std::vector<Sum> sums_;
};

// Collects rows of heads and layers. The heads of one Add are the heads of one layer over the same
// query rows: their outputs are concatenated, other values pooled.
class AttentionSamples {
 public:
  // Query rows of a layer, of which those that are added are a random sample; 0: they are all.
  explicit AttentionSamples(uint64_t population = 0) : population_(population) {}

  void Add(std::span<const AttentionRows> heads);
  // Rows [begin, end) only: steps, or deciles of the query position.
  void Add(std::span<const AttentionRows> heads, uint64_t begin, uint64_t end);
  AttentionSummary Summarise() const { return Of(all_); }
  // Of the evicting rows alone: not diluted by rows that lose nothing.
  AttentionSummary SummariseEvicting() const { return Of(evicting_); }

 private:
  struct Pool {
    uint64_t rows = 0, evicting_rows = 0, undefined_rows = 0;
    bool has_output = false;
    std::vector<double> mass, changed_mass, kl, js, output_error, output_cosine;
    std::array<std::vector<double>, kTopK.size()> top_k;
    double error2 = 0, norm2 = 0;
    ClusterError mass_error, kl_error, js_error, output_error_error, output_cosine_error;
    std::array<ClusterError, kTopK.size()> top_k_error;

    void AddHead(const AttentionRows& head, std::span<const uint64_t> rows);
    void AddRow(std::span<const AttentionRows> heads, uint64_t row);
  };
  AttentionSummary Of(const Pool& pool) const;

  uint64_t population_, clusters_ = 0;
  Pool all_, evicting_;
};

// Rows of the same head that follow each other.
void AppendRows(const AttentionRows& from, AttentionRows& to);

inline AttentionSummary Summarise(std::span<const AttentionRows> heads) {
  AttentionSamples samples;
  samples.Add(heads);
  return samples.Summarise();
}

}  // namespace kv
