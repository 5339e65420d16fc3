// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/attention/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kv {
namespace {

constexpr double kUndecided = std::numeric_limits<double>::quiet_NaN();

}  // namespace

void LargestKeys(std::span<const double> p, std::vector<uint32_t>& order) {
  order.clear();
  for (uint32_t j = 0; j < p.size(); ++j) {
    if (p[j] > 0) order.push_back(j);
  }
  const size_t most = std::min<size_t>(kTopK.back(), order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most), order.end(),
                    [&](uint32_t a, uint32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
  order.resize(most);
}

bool HasNan(std::span<const double> row) {
  return std::any_of(row.begin(), row.end(), [](double p) { return std::isnan(p); });
}

void StoreUndefinedOutput(uint64_t row, AttentionRows& out) {
  for (auto* values : {&out.error2, &out.norm2, &out.changed_norm2, &out.dot}) {
    if (!values->empty()) (*values)[row] = kUndecided;
  }
  for (std::vector<double>& values : out.log_p_change) values[row] = kUndecided;
}

void StoreUndefined(uint64_t row, AttentionRows& out) {
  for (auto* values : {&out.mass, &out.changed_mass, &out.kl, &out.js}) (*values)[row] = kUndecided;
  for (auto& values : out.top_k) values[row] = kUndecided;
  StoreUndefinedOutput(row, out);
}

AttentionRows MakeRows(uint64_t rows, bool with_output, uint64_t samples) {
  AttentionRows out;
  for (auto* values : {&out.mass, &out.changed_mass, &out.kl, &out.js}) values->resize(rows);
  for (auto& values : out.top_k) values.resize(rows);
  out.evicting.resize(rows);
  if (with_output) {
    for (auto* values : {&out.error2, &out.norm2, &out.changed_norm2, &out.dot}) {
      values->resize(rows);
    }
    out.log_p_change.assign(samples, std::vector<double>(rows));
  }
  return out;
}

void StoreOutput(const float* o, const float* e, uint64_t columns, OutputGradients gradients,
                 uint64_t row, AttentionRows& out) {
  double error2 = 0, norm2 = 0, changed2 = 0, dot = 0;
  for (uint64_t d = 0; d < columns; ++d) {
    const double full = o[d], lost = e[d], changed = full - lost;
    error2 += lost * lost;
    norm2 += full * full;
    changed2 += changed * changed;
    dot += full * changed;
  }
  out.error2[row] = error2;
  out.norm2[row] = norm2;
  out.changed_norm2[row] = changed2;
  out.dot[row] = dot;
  for (size_t sample = 0; sample < out.log_p_change.size(); ++sample) {
    const float* g = gradients[sample].row(row);
    double change = 0;
    for (uint64_t d = 0; d < columns; ++d) {
      change -= static_cast<double>(g[d]) * static_cast<double>(e[d]);
    }
    out.log_p_change[sample][row] = std::isfinite(change) ? change : kUndecided;
  }
}

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
  to.log_p_change.resize(std::max(to.log_p_change.size(), from.log_p_change.size()));
  for (size_t i = 0; i < from.log_p_change.size(); ++i) {
    append(from.log_p_change[i], to.log_p_change[i]);
  }
}

}  // namespace kv
