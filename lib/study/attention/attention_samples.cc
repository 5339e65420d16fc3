// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
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
  const double mean = value / weight;  // a ratio of two sums: clusters differ in size
  double squares = 0;
  for (const Sum& sum : sums_) {
    const double off = sum.value - mean * sum.weight;
    squares += off * off;
  }
  const auto n = static_cast<double>(clusters);
  const double variance = squares / (n - 1) * (1 - n / static_cast<double>(population)) / n;
  return std::sqrt(variance) / (weight / n);
}

void AttentionSamples::Pool::AddHead(const AttentionRows& head, std::span<const uint64_t> of) {
  const auto add = [](double value, uint64_t row, std::vector<double>& values,
                      ClusterError& error) {
    values.push_back(value);
    error.Add(row, value);
  };
  for (const uint64_t row : of) {
    add(head.mass[row], row, mass, mass_error);
    changed_mass.push_back(head.changed_mass[row]);
    add(head.kl[row], row, kl, kl_error);
    add(head.js[row], row, js, js_error);
    for (size_t i = 0; i < kTopK.size(); ++i) {
      add(head.top_k[i][row], row, top_k[i], top_k_error[i]);
    }
  }
}

void AttentionSamples::Pool::AddRow(std::span<const AttentionRows> heads, uint64_t row) {
  ++rows;
  evicting_rows += Evicts(heads, row);
  bool undefined = false;
  double row_error2 = 0, row_norm2 = 0, changed2 = 0, dot = 0;
  for (const AttentionRows& head : heads) {
    undefined |= std::isnan(head.mass[row]);
    if (!head.has_output()) continue;
    row_error2 += head.error2[row];
    row_norm2 += head.norm2[row];
    changed2 += head.changed_norm2[row];
    dot += head.dot[row];
  }
  has_output = heads.front().has_output();
  if (has_output) {
    output_error.push_back(std::sqrt(row_error2) / std::max(std::sqrt(row_norm2), kOutputEps));
    output_cosine.push_back(OutputCosine(row_error2, row_norm2, changed2, dot));
    output_error_error.Add(row, output_error.back());
    output_cosine_error.Add(row, output_cosine.back());
    const bool is_measured = std::isfinite(row_error2) && std::isfinite(row_norm2);
    undefined |= !is_measured;
    if (is_measured) {
      ++finite_outputs;
      error2 += row_error2;
      norm2 += row_norm2;
      squared_error.Add(row, row_error2, row_norm2);
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
  out.mass = Describe(pool.mass);
  out.changed_mass = Describe(pool.changed_mass);
  out.kl = Describe(pool.kl);
  out.js = Describe(pool.js);
  for (size_t i = 0; i < kTopK.size(); ++i) out.top_k[i] = Describe(pool.top_k[i]);
  out.output_error = Describe(pool.output_error);
  out.output_cosine = Describe(pool.output_cosine);
  if (pool.finite_outputs > 0) {
    out.output_error_frobenius =
        std::sqrt(pool.error2) / std::max(std::sqrt(pool.norm2), kOutputEps);
  }
  const auto error = [&](const ClusterError& of) { return of.Get(clusters_, population_); };
  out.standard_error = {
      error(pool.mass_error),
      error(pool.kl_error),
      error(pool.js_error),
      error(pool.output_error_error),
      error(pool.output_cosine_error),
      // Of a root: d sqrt(x) = dx / (2 sqrt(x)).
      pool.error2 == 0 ? 0 : error(pool.squared_error) / (2 * out.output_error_frobenius),
      {}};
  for (size_t i = 0; i < kTopK.size(); ++i) {
    out.standard_error.top_k[i] = error(pool.top_k_error[i]);
  }
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
