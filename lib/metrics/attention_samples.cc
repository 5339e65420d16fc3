// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/base/error.h"
#include "lib/metrics/attention.h"

namespace kv {
namespace {

constexpr double kOutputEps = 1e-12;

bool Evicts(std::span<const AttentionRows> heads, uint64_t row) {
  return std::any_of(heads.begin(), heads.end(),
                     [&](const AttentionRows& head) { return head.evicting[row] != 0; });
}

}  // namespace

void AppendRows(const AttentionRows& from, AttentionRows& to) {
  const auto append = [](const auto& more, auto& all) {
    all.insert(all.end(), more.begin(), more.end());
  };
  append(from.mass, to.mass);
  append(from.changed_mass, to.changed_mass);
  append(from.kl, to.kl);
  append(from.js, to.js);
  for (size_t i = 0; i < kTopK.size(); ++i) append(from.top_k[i], to.top_k[i]);
  append(from.evicting, to.evicting);
  append(from.error2, to.error2);
  append(from.norm2, to.norm2);
  append(from.changed_norm2, to.changed_norm2);
  append(from.dot, to.dot);
}

void AttentionSamples::Pool::AddHead(const AttentionRows& head, std::span<const uint64_t> of) {
  for (const uint64_t row : of) {
    mass.push_back(head.mass[row]);
    changed_mass.push_back(head.changed_mass[row]);
    kl.push_back(head.kl[row]);
    js.push_back(head.js[row]);
    for (size_t i = 0; i < kTopK.size(); ++i) top_k[i].push_back(head.top_k[i][row]);
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
    // A row that changed nothing has cosine 1 by definition, not up to rounding, zero rows too.
    const double norms = std::sqrt(row_norm2) * std::sqrt(changed2);
    output_cosine.push_back(row_error2 == 0                  ? 1.0
                            : norms > 0 || std::isnan(norms) ? dot / norms
                                                             : 0);
    const bool is_measured = std::isfinite(row_error2) && std::isfinite(row_norm2);
    undefined |= !is_measured;
    if (is_measured) {
      error2 += row_error2;
      norm2 += row_norm2;
    }
  }
  undefined_rows += undefined;
}

AttentionSummary AttentionSamples::Pool::Summarise() const {
  AttentionSummary out;
  out.rows = rows;
  out.evicting_rows = evicting_rows;
  out.undefined_rows = undefined_rows;
  out.has_output = has_output;
  out.mass = Describe(mass);
  out.changed_mass = Describe(changed_mass);
  out.kl = Describe(kl);
  out.js = Describe(js);
  for (size_t i = 0; i < kTopK.size(); ++i) out.top_k[i] = Describe(top_k[i]);
  out.output_error = Describe(output_error);
  out.output_cosine = Describe(output_cosine);
  out.output_error_frobenius = std::sqrt(error2) / std::max(std::sqrt(norm2), kOutputEps);
  return out;
}

void AttentionSamples::Add(std::span<const AttentionRows> heads) {
  if (!heads.empty()) Add(heads, 0, heads.front().rows());
}

void AttentionSamples::Add(std::span<const AttentionRows> heads, uint64_t begin, uint64_t end) {
  if (heads.empty()) return;
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
