// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Compares what quantised caches do to attention with figures computed in double.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/snapshot/layout.h"
#include "lib/study/attention/probabilities.h"
#include "lib/study/quantisation/stored_layer.h"
#include "tests/golden/quant_arrays.h"

namespace kv::golden {
namespace {

using nlohmann::json;
using quantisation::EngineQ;
using quantisation::PairRows;
using quantisation::RoundQueries;
using quantisation::StoredLayer;
using quantisation::StoreRequest;
using quantisation::TypePair;

// TracedLayer is one layer of the shared trace.
struct TracedLayer {
  Npy q, k, v;
  AttentionTrace trace;
  TraceLayer rows;
  LayerKv kv;

  TracedLayer(const std::filesystem::path& queries, const std::filesystem::path& keys,
              const std::filesystem::path& values)
      : q(queries), k(keys), v(values) {
    REQUIRE(q.shape.size() == 3);
    REQUIRE(k.shape.size() == 3);
    REQUIRE(v.shape == k.shape);
    REQUIRE(q.shape[0] == k.shape[0]);
    REQUIRE(q.shape[2] == k.shape[2]);
    REQUIRE(k.shape[1] > 0);
    REQUIRE(q.shape[1] % k.shape[1] == 0);
    const auto dim = static_cast<uint32_t>(k.shape[2]), heads = static_cast<uint32_t>(k.shape[1]);
    trace.query_heads = static_cast<uint32_t>(q.shape[1]);
    trace.head_dim = dim;
    trace.rows = q.shape[0];
    rows.queries = ContiguousView(q.dtype, q.shape, q.bytes.data());
    kv.k = ContiguousTensor(k.bytes.data(), k.dtype, k.shape[0], heads, dim, Order::kTokenHeadDim);
    kv.v = ContiguousTensor(v.bytes.data(), v.dtype, v.shape[0], heads, dim, Order::kTokenHeadDim);
  }
};

// Computes the softmax of one query over the keys [first, position]; `key` returns value d of token
// t.
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

// Computes the figures of one pair of types for one query head, from their formulas in double and
// in index order: the specification of MeasurePairs.
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

struct Sums {
  double out_rel = 0, one_minus_cos = 0, attn_kl = 0, mass_moved = 0, top8 = 0;
};

Sums FiguresOf(const PairRows& rows) {
  double error2 = 0, norm2 = 0, top = 0;
  Sums sums;
  for (size_t r = 0; r < rows.kl.size(); ++r) {
    error2 += rows.error2[r];
    norm2 += rows.norm2[r];
    if (rows.error2[r] > 0)
      sums.one_minus_cos += 1 - rows.dot[r] / std::sqrt(rows.norm2[r] * rows.changed2[r]);
    sums.attn_kl += rows.kl[r];
    sums.mass_moved += rows.moved[r];
    if (std::isnan(rows.top8[r])) continue;
    sums.top8 += rows.top8[r];
    top += 1;
  }
  const auto count = static_cast<double>(rows.kl.size());
  return {std::sqrt(error2 / norm2), sums.one_minus_cos / count, sums.attn_kl / count,
          sums.mass_moved / count, sums.top8 / top};
}

void CheckFigures(const Sums& got, const json& wanted, double tolerance, uint64_t rows) {
  const auto near = [&](double value, const char* name) {
    const double expected = wanted.at(name);
    INFO(name << ": " << value << " instead of " << expected);
    CHECK(std::fabs(value - expected) <= tolerance * (std::fabs(expected) + 1e-6));
  };
  near(got.out_rel, "out_rel");
  near(got.one_minus_cos, "one_minus_cos");
  near(got.attn_kl, "attn_kl");
  near(got.mass_moved, "mass_moved");
  // In single precision, rounding may swap two neighbours among the largest in one of the rows.
  const double swap = 1.0 / (8.0 * static_cast<double>(rows - std::min<uint64_t>(rows - 1, 8)));
  CHECK(std::fabs(got.top8 - wanted.at("top8").get<double>()) <=
        (tolerance > 1e-5 ? 1.5 * swap : 1e-9));
}

void CheckCase(const TracedLayer& traced, const json& wanted, Run& run) {
  std::string name = wanted.at("type");
  INFO(name << " " << wanted.at("mode"));
  quantisation::StoreRequest request;
  request.engine_q = quantisation::EngineQ::kExact;
  request.rotate = name.ends_with("+rot");
  if (request.rotate) name.resize(name.size() - 4);
  if (name == "fp8_scale1") name = "fp8_e4m3";
  if (name == "int8_pth") name = "int8_per_token_head";
  const quant::CacheType& type = quant::ParseCacheType(name, "golden");
  request.k_types = request.v_types = {&type};
  const std::string mode = wanted.at("mode");
  REQUIRE((mode == "k" || mode == "v" || mode == "kv"));
  REQUIRE(wanted.at("heads").size() == traced.trace.query_heads);
  const TypePair pair{mode == "v" ? TypePair::kFull : 0, mode == "k" ? TypePair::kFull : 0};
  const LayerAttention attention(traced.trace, traced.rows, traced.kv);
  ThreadPool pool(1);
  const auto stored = StoreLayer(attention, 1, request, pool);
  const auto rows = eviction::ChooseRows(0, traced.trace.rows, 0, 0);
  const auto fast = MeasurePairs(attention, stored, request, {pair}, rows, pool);
  for (uint32_t head = 0; head < traced.trace.query_heads; ++head) {
    INFO("head " << head);
    const json& of_head = wanted.at("heads").at(head);
    CheckFigures(FiguresOf(MeasurePair(attention, stored, request, pair, rows, head)), of_head,
                 2e-6, traced.trace.rows);
    // With heads of 8 values a divergence of 1.08 nats has an error of 6e-4 of its value in single
    // precision.
    CheckFigures(FiguresOf(fast.at(0).at(head)), of_head, 1e-3, traced.trace.rows);
  }
  if (!wanted.at("snr_k_db").is_null())
    CHECK(stored.k_stored[0].snr_db() == Approx(wanted["snr_k_db"].get<double>()).epsilon(1e-6));
  if (!wanted.at("snr_v_db").is_null())
    CHECK(stored.v_stored[0].snr_db() == Approx(wanted["snr_v_db"].get<double>()).epsilon(1e-6));
  run.Checked();
}

void CheckLayer(const json& vector, Run& run) {
  REQUIRE(vector.contains("source"));
  const std::string trace = vector["source"].at("trace");
  const uint32_t layer = vector["source"].at("layer");
  const auto q = run.Trace(trace, layer, 'Q'), k = run.Trace(trace, layer, 'K'),
             v = run.Trace(trace, layer, 'V');
  if (!q || !k || !v) return;
  const TracedLayer traced(*q, *k, *v);
  for (const json& wanted : run.Json("quant/" + vector.at("expect_file").get<std::string>()))
    CheckCase(traced, wanted, run);
}

}  // namespace

void CheckQuantAttention(Run& run) {
  constexpr KindCheck kKinds[] = {{"attention", CheckLayer}};
  CheckKinds(kKinds, run);
}

}  // namespace kv::golden
