// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lib/core/base/error.h"
#include "lib/study/attention/attention_rows.h"

namespace kv {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Stores KL, JS and masses between P and P' in row `row`, through the groups that P' is made of.
void GroupRow(std::span<const double> p, std::span<const double> changed,
              std::span<const TokenRange> sources, std::span<const uint8_t> kept,
              std::span<const uint64_t> dropped, uint64_t row, std::vector<uint32_t>& largest,
              AttentionRows& out) {
  LargestKeys(p, largest);
  TopKKept(
      largest, [&](uint32_t key) { return kept[key] != 0; }, row, out);
  double mass = 0, changed_mass = 0, lost = 0, kl = 0, js = 0;
  for (uint64_t t : dropped) lost += p[t];
  for (size_t j = 0; j < sources.size(); ++j) {
    double group = 0;
    for (uint64_t t = sources[j].begin; t < sources[j].end; ++t) group += p[t];
    if (sources[j].end - sources[j].begin == 1) {
      mass += group;
      changed_mass += changed[j];
    }
    const double middle = 0.5 * (group + changed[j]);
    if (changed[j] > 0) {
      kl += group > 0 ? changed[j] * std::log(changed[j] / group) : kInfinity;
      js += 0.5 * changed[j] * std::log(changed[j] / middle);
    }
    if (group > 0) js += 0.5 * group * std::log(group / middle);
  }
  out.mass[row] = mass;
  out.changed_mass[row] = changed_mass;
  out.kl[row] = std::max(kl, 0.0);
  out.js[row] = std::max(js + 0.5 * lost * std::log(2.0), 0.0);
  bool evicting = false;
  for (size_t t = 0; t < p.size(); ++t) evicting |= p[t] > 0 && kept[t] == 0;
  out.evicting[row] = evicting;
  // Everything stands for itself: the sums above are 1 up to rounding.
  if (!evicting) out.mass[row] = out.changed_mass[row] = 1;
}

}  // namespace

AttentionRows CompareCaches(const HeadQueries& queries, const HeadCache& full,
                            const HeadQueries& changed_queries, const HeadCache& changed,
                            std::span<const TokenRange> sources, const AttentionRule& rule,
                            OutputGradients gradients) {
  const uint64_t rows = queries.q.rows, keys = full.k.rows, changed_keys = changed.k.rows;
  KV_ASSERT(changed_queries.q.rows == rows && sources.size() == changed_keys);
  const bool with_output = !full.v.empty() && !changed.v.empty();
  KV_ASSERT(!with_output || full.v.columns == changed.v.columns);
  std::vector<uint8_t> kept(keys, 0), covered(keys, 0);
  for (const TokenRange& range : sources) {
    KV_ASSERT(range.begin < range.end && range.end <= keys);
    if (range.end - range.begin == 1) kept[range.begin] = 1;
    for (uint64_t t = range.begin; t < range.end; ++t) covered[t] = 1;
  }
  std::vector<uint64_t> dropped;
  for (uint64_t t = 0; t < keys; ++t) {
    if (!covered[t]) dropped.push_back(t);
  }
  AttentionRows out = MakeRows(rows, with_output, gradients.size());
  std::vector<double> p, changed_p;
  std::vector<float> narrow, o, e;
  std::vector<uint32_t> order;
  for (uint64_t begin = 0; begin < rows; begin += kAttentionTileRows) {
    const uint64_t count = std::min(kAttentionTileRows, rows - begin);
    p.resize(count * keys);
    changed_p.resize(count * changed_keys);
    AttentionProbabilities(queries, full, rule, begin, count, p);
    AttentionProbabilities(changed_queries, changed, rule, begin, count, changed_p);
    for (uint64_t i = 0; i < count; ++i) {
      GroupRow(std::span(p).subspan(i * keys, keys),
               std::span(changed_p).subspan(i * changed_keys, changed_keys), sources, kept, dropped,
               begin + i, order, out);
    }
    if (with_output) {
      Narrow(p, narrow);
      Outputs(narrow, count, full.v, o);
      Narrow(changed_p, narrow);
      Outputs(narrow, count, changed.v, e);
      std::transform(o.begin(), o.end(), e.begin(), e.begin(), std::minus<>());
      for (uint64_t i = 0; i < count; ++i) {
        StoreOutput(&o[i * full.v.columns], &e[i * full.v.columns], full.v.columns, gradients,
                    begin + i, out);
      }
    }
    for (uint64_t i = 0; i < count; ++i) {
      const bool is_defined = !HasNan(std::span(p).subspan(i * keys, keys)) &&
                              !HasNan(std::span(changed_p).subspan(i * changed_keys, changed_keys));
      if (!is_defined) StoreUndefined(begin + i, out);
    }
  }
  return out;
}

}  // namespace kv
