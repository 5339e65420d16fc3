// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Collects figures of rows over heads and layers, and summarises them with standard errors.
#include "lib/study/attention/attention_samples.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "lib/core/base/error.h"

namespace kv {
namespace {

constexpr double kOutputEps = 1e-12;

bool Evicts(std::span<const AttentionRows> heads, uint64_t row) {
  return std::any_of(heads.begin(), heads.end(),
                     [&](const AttentionRows& head) { return head.evicting[row] != 0; });
}

}  // namespace

double OutputCosine(double error2, double norm2, double changed2, double dot) {
  if (error2 == 0) return 1;
  const double norms = std::sqrt(norm2) * std::sqrt(changed2);
  return norms > 0 || std::isnan(norms) ? dot / norms : 0;
}

void ClusterError::Add(uint64_t cluster, double value, double weight) {
  if (std::isnan(value)) return;
  if (sums_.size() <= cluster) sums_.resize(cluster + 1);
  sums_[cluster].value += value;
  sums_[cluster].weight += weight;
}

double ClusterError::Get(uint64_t clusters, uint64_t population) const {
  if (clusters >= population) return 0;
  if (clusters < 2) return std::numeric_limits<double>::quiet_NaN();
  double value = 0, weight = 0;
  for (const Sum& sum : sums_) {
    value += sum.value;
    weight += sum.weight;
  }
  const double mean = value / weight;  // a ratio of two sums, because clusters differ in size
  double squares = 0;
  for (const Sum& sum : sums_) {
    const double off = sum.value - mean * sum.weight;
    squares += off * off;
  }
  const auto n = static_cast<double>(clusters);
  const double variance = squares / (n - 1) * (1 - n / static_cast<double>(population)) / n;
  return std::sqrt(variance) / (weight / n);
}

RowOutput::RowOutput(std::span<const AttentionRows> heads, uint64_t row) {
  for (const AttentionRows& head : heads) {
    if (!head.has_output()) continue;
    error2 += head.error2[row];
    norm2 += head.norm2[row];
    changed2 += head.changed_norm2[row];
    dot += head.dot[row];
  }
}

double RowOutput::error() const {
  return std::sqrt(error2) / std::max(std::sqrt(norm2), kOutputEps);
}

void AttentionSamples::Pool::AddHead(const AttentionRows& head, std::span<const uint64_t> of) {
  for (const uint64_t row : of) {
    mass.Add(row, head.mass[row]);
    changed_mass.Add(row, head.changed_mass[row]);
    kl.Add(row, head.kl[row]);
    js.Add(row, head.js[row]);
    for (size_t i = 0; i < kTopK.size(); ++i) top_k[i].Add(row, head.top_k[i][row]);
  }
}

void AttentionSamples::Pool::AddRow(std::span<const AttentionRows> heads, uint64_t row) {
  ++rows;
  evicting_rows += Evicts(heads, row);
  bool undefined = std::any_of(heads.begin(), heads.end(), [&](const AttentionRows& head) {
    return std::isnan(head.mass[row]);
  });
  has_output = heads.front().has_output();
  if (has_output) {
    const RowOutput output(heads, row);
    output_error.Add(row, output.error());
    output_cosine.Add(row, output.cosine());
    const bool is_measured = std::isfinite(output.error2) && std::isfinite(output.norm2);
    undefined |= !is_measured;
    if (is_measured) {
      ++finite_outputs;
      error2 += output.error2;
      norm2 += output.norm2;
      squared_error.Add(row, output.error2, output.norm2);
    }
  }
  undefined_rows += undefined;
}

AttentionSummary AttentionSamples::Of(const Pool& pool) const {
  AttentionSummary out;
  out.rows = pool.rows;
  out.evicting_rows = pool.evicting_rows;
  out.undefined_rows = pool.undefined_rows;
  out.has_output = pool.has_output;
  const auto describe = [&](const Pooled& of, Distribution& figure, double& error) {
    figure = Describe(of.values);
    error = of.error.Get(clusters_, population_);
  };
  AttentionSummary::StandardErrors& errors = out.standard_error;
  describe(pool.mass, out.mass, errors.mass);
  out.changed_mass = Describe(pool.changed_mass.values);
  describe(pool.kl, out.kl, errors.kl);
  describe(pool.js, out.js, errors.js);
  for (size_t i = 0; i < kTopK.size(); ++i) {
    describe(pool.top_k[i], out.top_k[i], errors.top_k[i]);
  }
  describe(pool.output_error, out.output_error, errors.output_error);
  describe(pool.output_cosine, out.output_cosine, errors.output_cosine);
  if (pool.finite_outputs > 0) {
    out.output_error_frobenius =
        std::sqrt(pool.error2) / std::max(std::sqrt(pool.norm2), kOutputEps);
  }
  // Error of a root: d sqrt(x) = dx / (2 sqrt(x)).
  errors.output_error_frobenius =
      pool.error2 == 0
          ? 0
          : pool.squared_error.Get(clusters_, population_) / (2 * out.output_error_frobenius);
  return out;
}

void AttentionSamples::Add(std::span<const AttentionRows> heads) {
  if (!heads.empty()) Add(heads, 0, heads.front().rows());
}

void AttentionSamples::Add(std::span<const AttentionRows> heads, uint64_t begin, uint64_t end) {
  if (heads.empty()) return;
  clusters_ = std::max(clusters_, end);
  std::vector<uint64_t> rows(end - begin), evicting;
  std::iota(rows.begin(), rows.end(), begin);
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(evicting),
               [&](uint64_t row) { return Evicts(heads, row); });
  for (const AttentionRows& head : heads) {
    KV_ASSERT(begin <= end && end <= head.rows() &&
              head.has_output() == heads.front().has_output());
    all_.AddHead(head, rows);
    evicting_.AddHead(head, evicting);
  }
  for (const uint64_t row : rows) all_.AddRow(heads, row);
  for (const uint64_t row : evicting) evicting_.AddRow(heads, row);
}

}  // namespace kv
