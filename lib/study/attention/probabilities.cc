// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/attention/probabilities.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "lib/core/base/error.h"
#include "lib/study/dense/gemm.h"

namespace kv {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();  // logit of a masked key
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

uint64_t TokensSeen(const AttentionTrace& trace, uint32_t layer, uint64_t position) {
  const TraceLayer* rows = trace.Find(layer);
  const AttentionRule rule =
      rows != nullptr ? MakeRule(trace, *rows) : AttentionRule{0, 0, trace.window};
  return position + 1 - rule.FirstSeen(position);
}

std::string RemarkOnBlocks(const Snapshot& snapshot) {
  for (const LayerKv& layer : snapshot.layers) {
    for (const KvTensor* tensor : {&layer.k, layer.v ? &*layer.v : &layer.k}) {
      if (!IsBlockQuantised(tensor->dtype)) continue;
      return fmt::format("the cache is stored in {}: losses are in addition to that type's own",
                         kv::Name(tensor->dtype));
    }
  }
  return {};
}

std::string RemarkOnWindows(const AttentionTrace& trace, uint64_t end) {
  std::vector<uint32_t> layers;
  uint64_t least = end;
  for (const TraceLayer& layer : trace.layers) {
    const uint64_t seen = TokensSeen(trace, layer.layer, end - 1);
    if (seen == end) continue;
    layers.push_back(layer.layer);
    least = std::min(least, seen);
  }
  if (layers.empty()) return {};
  return fmt::format(
      "{} {} with a sliding window (of at least {} tokens): tokens outside count neither as held "
      "nor as saved",
      layers.size() == 1 ? "layer" : "layers", fmt::join(layers, ", "), least);
}

void DotProducts(const FloatMatrix& queries, uint64_t begin, uint64_t count,
                 const FloatMatrix& keys, std::vector<float>& out) {
  KV_ASSERT(queries.columns == keys.columns && begin + count <= queries.rows);
  out.resize(count * keys.rows);
  GemmNT(queries.row(begin), queries.stride, keys.data, keys.stride, out.data(), keys.rows, count,
         keys.rows, keys.columns);
}

void Softmax(std::span<double> scores) {
  double largest = kUnseen;
  for (const double score : scores) {
    if (!(score <= largest)) largest = score;  // a NaN must win, so that the whole row becomes NaN
  }
  double sum = 0;
  for (double& score : scores) {
    score = score == kUnseen ? 0.0 : std::exp(score - largest);
    sum += score;
  }
  for (double& p : scores) p /= sum;
}

void AttentionProbabilities(const HeadQueries& queries, const HeadCache& cache,
                            const AttentionRule& rule, uint64_t begin, uint64_t count,
                            std::span<double> out) {
  const uint64_t keys = cache.k.rows;
  KV_ASSERT(out.size() == count * keys);
  KV_ASSERT(cache.positions.empty() || cache.positions.size() == keys);
  KV_ASSERT(cache.bias.empty() || cache.bias.size() == keys);
  const double scale = rule.ScaleFor(cache.k.columns);
  std::vector<float> products;
  DotProducts(queries.q, begin, count, cache.k, products);
  for (uint64_t i = 0; i < count; ++i) {
    const std::span<double> row = out.subspan(i * keys, keys);
    bool is_finite = true, sees_any = false;
    for (uint64_t j = 0; j < keys; ++j) {
      const int64_t key = cache.positions.empty() ? static_cast<int64_t>(j) : cache.positions[j];
      if (!queries.positions.empty() && !rule.Sees(queries.positions[begin + i], key)) {
        row[j] = kUnseen;
        continue;
      }
      const double score = scale * static_cast<double>(products[i * keys + j]);
      // Checked before the softcap, which makes an infinite score finite.
      is_finite &= std::isfinite(score);
      row[j] = Softcapped(score, rule.softcap);
      if (!cache.bias.empty()) row[j] += static_cast<double>(cache.bias[j]);
      sees_any |= row[j] != kUnseen;
    }
    if (!is_finite) {
      std::fill(row.begin(), row.end(), kNan);
    } else if (!sees_any) {
      std::fill(row.begin(), row.end(), 0.0);
    } else {
      Softmax(row);
    }
  }
}

void Narrow(std::span<const double> from, std::vector<float>& to) {
  to.resize(from.size());
  std::transform(from.begin(), from.end(), to.begin(),
                 [](double value) { return static_cast<float>(value); });
}

void Outputs(std::span<const float> probabilities, uint64_t rows, const FloatMatrix& v,
             std::vector<float>& out) {
  out.resize(rows * v.columns);
  GemmNN(probabilities.data(), v.rows, v.data, v.stride, out.data(), v.columns, rows, v.columns,
         v.rows);
}

}  // namespace kv
