// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/metrics/attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "lib/base/error.h"
#include "lib/kernels/gemm.h"

namespace kv {
namespace {

constexpr uint64_t kTileRows = 64;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

// Rows of doubles, filled a tile at a time.
using FillTile = std::function<void(uint64_t begin, uint64_t count, std::span<double> out)>;

// The largest kTopK.back() visible keys, largest first; of equal ones the lower index.
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

// Share of the k largest probabilities that is kept, for each k of kTopK.
void TopKKept(std::span<const uint32_t> largest, std::span<const uint8_t> kept, uint64_t row,
              AttentionRows& out) {
  for (size_t i = 0; i < kTopK.size(); ++i) {
    const size_t k = std::min<size_t>(kTopK[i], largest.size());
    size_t hits = 0;
    for (size_t j = 0; j < k; ++j) hits += kept[largest[j]] != 0;
    out.top_k[i][row] = k == 0 ? 1.0 : static_cast<double>(hits) / static_cast<double>(k);
  }
}

AttentionRows MakeRows(uint64_t rows, bool with_output) {
  AttentionRows out;
  for (auto* values : {&out.mass, &out.changed_mass, &out.kl, &out.js}) values->resize(rows);
  for (auto& values : out.top_k) values.resize(rows);
  out.evicting.resize(rows);
  if (with_output) {
    for (auto* values : {&out.error2, &out.norm2, &out.changed_norm2, &out.dot}) {
      values->resize(rows);
    }
  }
  return out;
}

// Row `row` of the output metrics from o and e = o - o'.
void StoreOutput(const float* o, const float* e, uint64_t columns, uint64_t row,
                 AttentionRows& out) {
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
}

// Jensen-Shannon divergence when P' is P cut to a share `mass` and renormalised.
double JsOfSubset(double mass) {
  if (mass <= 0) return std::log(2.0);
  if (mass >= 1) return 0;
  return 0.5 * ((1 - mass) * std::log(2.0) + mass * std::log(2 * mass / (1 + mass)) +
                std::log(2 / (1 + mass)));
}

// Row `row` of the metrics of a kept subset; turns P into P - P' in `p`.
void KeptRow(std::span<double> p, std::span<const uint8_t> kept, std::span<const uint32_t> largest,
             uint64_t row, AttentionRows& out) {
  TopKKept(largest, kept, row, out);
  double mass = 0, total = 0;
  bool evicting = false;
  for (size_t j = 0; j < p.size(); ++j) {
    total += p[j];
    if (kept[j] != 0) {
      mass += p[j];
    } else {
      evicting |= p[j] > 0;
    }
  }
  out.changed_mass[row] = 1;
  out.evicting[row] = evicting;
  if (!evicting) {
    out.mass[row] = std::isnan(total) ? total : 1.0;
    out.kl[row] = out.js[row] = std::isnan(total) ? total : 0.0;
    if (!std::isnan(total)) std::fill(p.begin(), p.end(), 0.0);
    return;
  }
  out.mass[row] = mass;
  out.kl[row] = -std::log(mass);
  out.js[row] = JsOfSubset(mass);
  const double kept_factor = mass > 0 ? 1 - 1 / mass : 1;
  for (size_t j = 0; j < p.size(); ++j) {
    if (kept[j] != 0) p[j] *= kept_factor;
  }
}

void Narrow(std::span<const double> from, std::vector<float>& to) {
  to.resize(from.size());
  std::transform(from.begin(), from.end(), to.begin(),
                 [](double value) { return static_cast<float>(value); });
}

// P x V for a tile of probability rows.
void Outputs(std::span<const double> p, uint64_t rows, const FloatMatrix& v,
             std::vector<float>& narrow, std::vector<float>& out) {
  Narrow(p, narrow);
  out.resize(rows * v.columns);
  GemmNN(narrow.data(), v.rows, v.data, v.stride, out.data(), v.columns, rows, v.columns, v.rows);
}

std::vector<AttentionRows> CompareKeptRows(uint64_t rows, uint64_t keys, const FillTile& fill,
                                           const FloatMatrix& v,
                                           std::span<const std::span<const uint8_t>> kept_sets) {
  KV_ASSERT(v.empty() || v.rows == keys);
  std::vector<AttentionRows> out;
  for (const std::span<const uint8_t> kept : kept_sets) {
    KV_ASSERT(kept.size() == keys);
    out.push_back(MakeRows(rows, !v.empty()));
  }
  std::vector<double> p, changed;
  std::vector<float> narrow, o, e;
  std::vector<std::vector<uint32_t>> largest(kTileRows);
  for (uint64_t begin = 0; begin < rows; begin += kTileRows) {
    const uint64_t count = std::min(kTileRows, rows - begin);
    p.resize(count * keys);
    fill(begin, count, p);
    if (!v.empty()) Outputs(p, count, v, narrow, o);
    for (uint64_t i = 0; i < count; ++i) {
      LargestKeys(std::span(p).subspan(i * keys, keys), largest[i]);
    }
    for (size_t set = 0; set < kept_sets.size(); ++set) {
      changed = p;
      for (uint64_t i = 0; i < count; ++i) {
        KeptRow(std::span(changed).subspan(i * keys, keys), kept_sets[set], largest[i], begin + i,
                out[set]);
      }
      if (v.empty()) continue;
      // The difference goes through the GEMM itself: its rounding is relative to the error, and
      // keys that change nothing contribute exactly nothing.
      Outputs(changed, count, v, narrow, e);
      for (uint64_t i = 0; i < count; ++i) {
        StoreOutput(&o[i * v.columns], &e[i * v.columns], v.columns, begin + i, out[set]);
      }
    }
  }
  return out;
}

// Row `row` of KL, JS and masses between P and P' through the groups that P' is made of.
void GroupRow(std::span<const double> p, std::span<const double> changed,
              std::span<const TokenRange> sources, std::span<const uint8_t> kept,
              std::span<const uint64_t> dropped, uint64_t row, std::vector<uint32_t>& largest,
              AttentionRows& out) {
  LargestKeys(p, largest);
  TopKKept(largest, kept, row, out);
  double mass = 0, changed_mass = 0, covered = 0, lost = 0, kl = 0, js = 0;
  for (uint64_t t : dropped) lost += p[t];
  for (size_t j = 0; j < sources.size(); ++j) {
    double group = 0;
    for (uint64_t t = sources[j].begin; t < sources[j].end; ++t) group += p[t];
    covered += group;
    if (sources[j].end - sources[j].begin == 1) {
      mass += group;
      changed_mass += changed[j];
    }
    if (std::isnan(changed[j])) kl = js = changed[j];
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
  if (!evicting && !std::isnan(mass)) out.mass[row] = out.changed_mass[row] = 1;
  if (std::isnan(kl) || std::isnan(covered) || std::isnan(lost)) {
    out.kl[row] = out.js[row] = kl + covered + lost;
  }
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
    for (uint64_t j = 0; j < keys; ++j) {
      const int64_t key = cache.positions.empty() ? static_cast<int64_t>(j) : cache.positions[j];
      if (!queries.positions.empty() && !Sees(queries.positions[begin + i], key, rule.window)) {
        row[j] = -kInfinity;
        continue;
      }
      double score = scale * static_cast<double>(scores[i * keys + j]);
      if (rule.softcap != 0) score = rule.softcap * std::tanh(score / rule.softcap);
      row[j] = cache.bias.empty() ? score : score + static_cast<double>(cache.bias[j]);
    }
    Softmax(row);
  }
}

std::vector<AttentionRows> CompareKeptSets(const HeadQueries& queries, const HeadCache& full,
                                           std::span<const std::span<const uint8_t>> kept_sets,
                                           const AttentionRule& rule) {
  const auto fill = [&](uint64_t begin, uint64_t count, std::span<double> out) {
    AttentionProbabilities(queries, full, rule, begin, count, out);
  };
  return CompareKeptRows(queries.q.rows, full.k.rows, fill, full.v, kept_sets);
}

std::vector<AttentionRows> CompareKeptSetsProbabilities(
    const FloatMatrix& probabilities, const FloatMatrix& v,
    std::span<const std::span<const uint8_t>> kept_sets) {
  const uint64_t keys = probabilities.columns;
  const auto fill = [&](uint64_t begin, uint64_t count, std::span<double> out) {
    for (uint64_t i = 0; i < count; ++i) {
      std::copy_n(probabilities.row(begin + i), keys, &out[i * keys]);
    }
  };
  return CompareKeptRows(probabilities.rows, keys, fill, v, kept_sets);
}

AttentionRows CompareKept(const HeadQueries& queries, const HeadCache& full,
                          std::span<const uint8_t> kept, const AttentionRule& rule) {
  return std::move(CompareKeptSets(queries, full, {&kept, 1}, rule).front());
}

AttentionRows CompareKeptProbabilities(const FloatMatrix& probabilities, const FloatMatrix& v,
                                       std::span<const uint8_t> kept) {
  return std::move(CompareKeptSetsProbabilities(probabilities, v, {&kept, 1}).front());
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
    if (!with_output) continue;
    Outputs(p, count, full.v, narrow, o);
    Outputs(changed_p, count, changed.v, narrow, e);
    std::transform(o.begin(), o.end(), e.begin(), e.begin(), std::minus<>());
    for (uint64_t i = 0; i < count; ++i) {
      StoreOutput(&o[i * full.v.columns], &e[i * full.v.columns], full.v.columns, begin + i, out);
    }
  }
  return out;
}

}  // namespace kv
