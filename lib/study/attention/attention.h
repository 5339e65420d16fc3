// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/snapshot/snapshot.h"
#include "lib/study/attention/probabilities.h"
#include "lib/study/statistics/distribution.h"

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

// The figures to compute: all of them, or all but the top-k shares, which stay NaN.
enum class AttentionFigures { kAll, kNoTopK };

// Compares the full cache with caches that have only the keys of a kept set, for several sets at
// once: P, o and the largest keys are computed once. Returns one result per set, in their order.
// The softmax over a subset is the renormalised full one, so P' = P / M: KL is -ln M exactly, and a
// row that loses nothing has exactly mass 1, error 0 and KL 0. A row that keeps nothing has o' = 0
// and KL = infinity.
std::vector<AttentionRows> CompareKeptSets(const HeadQueries& queries, const HeadCache& full,
                                           std::span<const KeptBefore> sets,
                                           const AttentionRule& rule = {},
                                           OutputGradients gradients = {},
                                           AttentionFigures figures = AttentionFigures::kAll);
// Compares kept sets by recorded probabilities, [query][key], 0 for hidden keys, in rows that the
// caller has normalised. `positions` are those of the rows.
std::vector<AttentionRows> CompareKeptSetsProbabilities(
    const FloatMatrix& probabilities, std::span<const int64_t> positions, const FloatMatrix& v,
    std::span<const KeptBefore> sets, OutputGradients gradients = {},
    AttentionFigures figures = AttentionFigures::kAll);

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

// Figures over many query rows, from these comparisons.

// Describes some query rows. A row is one query of one layer with all its heads; it evicts if one
// of its heads loses a key that had weight. A row without figures, because queries, keys or values
// are NaN or infinite, is counted but left out of them.
struct AttentionSummary {
  uint64_t rows = 0;
  uint64_t evicting_rows = 0;   // rows that evict
  uint64_t undefined_rows = 0;  // rows in which some figure of some head is NaN
  bool has_output = false;
  // The values of all heads, pooled: rows x heads samples.
  Distribution mass, changed_mass, kl, js;
  std::array<Distribution, kTopK.size()> top_k;
  Distribution output_error;   // |o - o'| / max(|o|, 1e-12), heads concatenated
  Distribution output_cosine;  // o.o' / (|o| |o'|), heads concatenated
  // |O - O'| / |O| over all rows; NaN if no row has a figure.
  double output_error_frobenius = Distribution::kNone;
  // Standard errors of the means if the rows are a random sample; 0 if they are all rows.
  struct StandardErrors {
    double mass = 0, kl = 0, js = 0, output_error = 0, output_cosine = 0;
    double output_error_frobenius = 0;
    std::array<double, kTopK.size()> top_k = {};
  } standard_error;
};

// Returns the cosine of o and o' from |o - o'|^2, |o|^2, |o'|^2 and o.o'. A row that did not
// change, even a zero row, has cosine 1 by definition, not up to rounding; other rows with a zero
// vector have 0.
double OutputCosine(double error2, double norm2, double changed2, double dot);

// The output figures of one row, summed over heads; NaN if those of some head are.
struct RowOutput {
  double error2 = 0, norm2 = 0, changed2 = 0, dot = 0;

  RowOutput(std::span<const AttentionRows> heads, uint64_t row);
  double error() const;  // |o - o'| / max(|o|, 1e-12)
  double cosine() const { return OutputCosine(error2, norm2, changed2, dot); }
};

// Computes the standard error of a mean over values that come in clusters: the heads and layers of
// one query row change together. The clusters are a simple random sample, drawn without
// replacement.
class ClusterError {
 public:
  // Adds a value of a cluster; a NaN is left out. With weights, the mean is the sum of the values
  // over the sum of the weights.
  void Add(uint64_t cluster, double value, double weight = 1);
  // Returns the standard error, given the number of clusters drawn and the size of the population.
  // Clusters without a value count, as in any estimate of a part of the population. Returns 0 if
  // the sample is the population, NaN for fewer than two clusters.
  double Get(uint64_t clusters, uint64_t population) const;

 private:
  struct Sum {
    double value = 0, weight = 0;
  };
  std::vector<Sum> sums_;
};

// Collects rows of heads and layers. The heads of one Add are the heads of one layer over the same
// query rows: their outputs are concatenated, other values pooled.
class AttentionSamples {
 public:
  // `population` is the number of query rows of the layer if the added rows are a random sample of
  // them; 0 if all are added.
  explicit AttentionSamples(uint64_t population = 0) : population_(population) {}

  void Add(std::span<const AttentionRows> heads);
  // Adds the rows [begin, end) only: those of some steps, or of a decile of the query position.
  void Add(std::span<const AttentionRows> heads, uint64_t begin, uint64_t end);
  AttentionSummary Summarise() const { return Of(all_); }
  // Summarises the evicting rows alone, so that rows that lose nothing do not dilute the figures.
  AttentionSummary SummariseEvicting() const { return Of(evicting_); }

 private:
  struct Pooled {
    std::vector<double> values;
    ClusterError error;

    void Add(uint64_t row, double value) {
      values.push_back(value);
      error.Add(row, value);
    }
  };
  struct Pool {
    uint64_t rows = 0, evicting_rows = 0, undefined_rows = 0;
    uint64_t finite_outputs = 0;  // rows that count in error2 and norm2
    bool has_output = false;
    Pooled mass, changed_mass, kl, js, output_error, output_cosine;
    std::array<Pooled, kTopK.size()> top_k;
    double error2 = 0, norm2 = 0;
    ClusterError squared_error;  // clustered error of error2 / norm2

    void AddHead(const AttentionRows& head, std::span<const uint64_t> rows);
    void AddRow(std::span<const AttentionRows> heads, uint64_t row);
  };
  AttentionSummary Of(const Pool& pool) const;

  uint64_t population_, clusters_ = 0;
  Pool all_, evicting_;
};

// Summarises all rows of one layer's heads.
inline AttentionSummary Summarise(std::span<const AttentionRows> heads) {
  AttentionSamples samples;
  samples.Add(heads);
  return samples.Summarise();
}

}  // namespace kv
