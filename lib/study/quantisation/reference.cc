// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The figures of one pair of types, from their formulas (stored_layer.h names this file's
// function).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/study/attention/probabilities.h"
#include "lib/study/quantisation/stored_layer.h"

namespace kv::quantisation::ref {
namespace {

// Softmax of one query over the keys [first, position], through `key`: value d of token t.
template <typename Key>
std::vector<double> Probabilities(const LayerAttention& attention, std::span<const float> query,
                                  uint64_t position, const Key& key) {
  const AttentionRule& rule = attention.rule();
  std::vector<double> scores(position + 1, -INFINITY);
  for (uint64_t t = rule.FirstSeen(position); t <= position; ++t) {
    double sum = 0;
    for (uint32_t d = 0; d < query.size(); ++d) sum += static_cast<double>(query[d]) * key(t, d);
    scores[t] = Softcapped(rule.ScaleFor(query.size()) * sum, rule.softcap);
  }
  Softmax(scores);
  return scores;
}

double TopShare(const std::vector<double>& p, const std::vector<double>& changed, size_t most) {
  if (p.size() <= most) return std::numeric_limits<double>::quiet_NaN();
  const auto largest = [&](const std::vector<double>& values) {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return values[a] > values[b]; });
    order.resize(most);
    return order;
  };
  const std::vector<size_t> before = largest(p), after = largest(changed);
  size_t hits = 0;
  for (const size_t j : before) hits += std::count(after.begin(), after.end(), j) != 0;
  return static_cast<double>(hits) / static_cast<double>(most);
}

}  // namespace

PairRows MeasurePair(const LayerAttention& attention, const StoredLayer& stored,
                     const StoreRequest& request, const TypePair& pair,
                     const eviction::MeasuredRows& rows, uint32_t head) {
  PairRows out;
  const uint32_t dim = attention.head_dim(), v_dim = attention.kv().v->head_dim;
  const uint64_t kv_head = head / attention.group();
  const uint64_t k_row = attention.kv().k.channels(), v_row = attention.kv().v->channels();
  for (const uint64_t position : rows.positions) {
    std::vector<float> query(dim);
    ReadQueries(attention.rows(), head, position - attention.first_row(), 1, query.data());
    std::vector<float> rounded = query;
    const auto full_key = [&](uint64_t t, uint32_t d) {
      return static_cast<double>(stored.k[t * k_row + kv_head * dim + d]);
    };
    const std::vector<double> p = Probabilities(attention, query, position, full_key);
    std::vector<double> changed = p;
    if (pair.k != TypePair::kFull) {
      const quant::CacheType& type = *request.k_types[pair.k];
      if (request.engine_q == EngineQ::kCpu) RoundQueries(type, request, dim, rounded);
      const std::vector<float>& difference = stored.k_stored[pair.k].difference;
      changed = Probabilities(attention, rounded, position, [&](uint64_t t, uint32_t d) {
        return full_key(t, d) + static_cast<double>(difference[t * k_row + kv_head * dim + d]);
      });
    }
    double kl = 0, moved = 0;
    for (size_t t = 0; t < p.size(); ++t) {
      if (p[t] > 0) kl += p[t] * std::log(p[t] / changed[t]);
      moved += std::fabs(changed[t] - p[t]) / 2;
    }
    out.kl.push_back(kl);
    out.moved.push_back(moved);
    out.top8.push_back(TopShare(p, changed, 8));
    out.top64.push_back(TopShare(p, changed, 64));
    double error2 = 0, norm2 = 0, changed2 = 0, dot = 0;
    for (uint32_t d = 0; d < v_dim; ++d) {
      double o = 0, o2 = 0;
      for (uint64_t t = 0; t < p.size(); ++t) {
        const uint64_t at = t * v_row + kv_head * v_dim + d;
        double value = static_cast<double>(stored.v[at]);
        o += p[t] * value;
        if (pair.v != TypePair::kFull)
          value += static_cast<double>(stored.v_stored[pair.v].difference[at]);
        o2 += changed[t] * value;
      }
      error2 += (o - o2) * (o - o2);
      norm2 += o * o;
      changed2 += o2 * o2;
      dot += o * o2;
    }
    out.error2.push_back(error2);
    out.norm2.push_back(norm2);
    out.changed2.push_back(changed2);
    out.dot.push_back(dot);
  }
  return out;
}

}  // namespace kv::quantisation::ref
