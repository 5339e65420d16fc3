// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lib/core/base/error.h"
#include "lib/study/attention/attention_rows.h"
#include "lib/study/dense/gemm.h"

namespace kv {
namespace {

constexpr uint64_t kTileRows = kAttentionTileRows;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool Sees(int64_t query, int64_t key, uint64_t window) {
  return key <= query && (window == 0 || static_cast<uint64_t>(query - key) < window);
}

// In place: scores become probabilities. Hidden keys are -infinity.
void Softmax(std::span<double> row) {
  double largest = -kInfinity;
  for (double score : row) {
    if (!(score <= largest)) largest = score;  // a NaN wins and makes the row NaN
  }
  if (largest == -kInfinity) {
    std::fill(row.begin(), row.end(), 0.0);
    return;
  }
  double sum = 0;
  for (double& score : row) {
    score = score == -kInfinity ? 0.0 : std::exp(score - largest);
    sum += score;
  }
  for (double& p : row) p /= sum;
}

// Row `row` of KL, JS and masses between P and P' through the groups that P' is made of.
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

void AttentionProbabilities(const HeadQueries& queries, const HeadCache& cache,
                            const AttentionRule& rule, uint64_t begin, uint64_t count,
                            std::span<double> out) {
  const uint64_t keys = cache.k.rows;
  KV_ASSERT(queries.q.columns == cache.k.columns && begin + count <= queries.q.rows);
  KV_ASSERT(out.size() == count * keys);
  KV_ASSERT(cache.positions.empty() || cache.positions.size() == keys);
  KV_ASSERT(cache.bias.empty() || cache.bias.size() == keys);
  const double scale =
      rule.scale != 0 ? rule.scale : 1 / std::sqrt(static_cast<double>(cache.k.columns));
  std::vector<float> scores(count * keys);
  GemmNT(queries.q.row(begin), queries.q.stride, cache.k.data, cache.k.stride, scores.data(), keys,
         count, keys, cache.k.columns);
  for (uint64_t i = 0; i < count; ++i) {
    const std::span<double> row = out.subspan(i * keys, keys);
    bool is_finite = true;
    for (uint64_t j = 0; j < keys; ++j) {
      const int64_t key = cache.positions.empty() ? static_cast<int64_t>(j) : cache.positions[j];
      if (!queries.positions.empty() && !Sees(queries.positions[begin + i], key, rule.window)) {
        row[j] = -kInfinity;
        continue;
      }
      double score = scale * static_cast<double>(scores[i * keys + j]);
      // Before a softcap, which would make an infinite score look like any other.
      is_finite &= std::isfinite(score);
      if (rule.softcap != 0) score = rule.softcap * std::tanh(score / rule.softcap);
      row[j] = cache.bias.empty() ? score : score + static_cast<double>(cache.bias[j]);
    }
    if (is_finite) {
      Softmax(row);
    } else {
      std::fill(row.begin(), row.end(), kNan);
    }
  }
}

AttentionRows CompareCaches(const HeadQueries& queries, const HeadCache& full,
                            const HeadQueries& changed_queries, const HeadCache& changed,
                            std::span<const TokenRange> sources, const AttentionRule& rule) {
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
  AttentionRows out = MakeRows(rows, with_output);
  std::vector<double> p, changed_p;
  std::vector<float> narrow, o, e;
  std::vector<uint32_t> order;
  for (uint64_t begin = 0; begin < rows; begin += kTileRows) {
    const uint64_t count = std::min(kTileRows, rows - begin);
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
        StoreOutput(&o[i * full.v.columns], &e[i * full.v.columns], full.v.columns, begin + i, out);
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
