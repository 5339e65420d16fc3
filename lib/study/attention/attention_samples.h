// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/study/attention/attention.h"
#include "lib/study/statistics/distribution.h"

// Figures over many query rows, from the comparisons of attention.h.
namespace kv {

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
    uint64_t finite_outputs = 0;  // number of rows in error2 and norm2
    bool has_output = false;
    Pooled mass, changed_mass, kl, js, output_error, output_cosine;
    std::array<Pooled, kTopK.size()> top_k;
    double error2 = 0, norm2 = 0;
    ClusterError squared_error;  // of error2 / norm2

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
