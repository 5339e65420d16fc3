// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/curve.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace kv::blend {
namespace {

// Added in index order, so that equal inputs give equal bits.
double Left(const std::vector<double>& deviation, const std::vector<uint8_t>& recomputed) {
  double sum = 0;
  for (size_t t = 0; t < deviation.size(); ++t) {
    if (recomputed[t] == 0) sum += deviation[t];
  }
  return sum;
}

double Share(double part, double whole) { return part == 0 ? 0 : part / whole; }

}  // namespace

Remaining RemainingOf(const LayerDeviation& layer, const std::vector<uint8_t>& recomputed) {
  return {Share(Left(layer.v.tokens, recomputed), layer.v.sum),
          Share(Left(layer.k.tokens, recomputed), layer.k.sum)};
}

std::vector<uint32_t> RandomOrder(uint64_t scored, uint64_t seed) {
  std::vector<uint32_t> order(scored);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  // Not std::shuffle: its choices differ between standard libraries.
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

std::vector<uint32_t> FirstOfChunkOrder(const std::vector<Chunk>& chunks, uint64_t scored) {
  std::vector<uint32_t> order;
  for (uint64_t i = 0; order.size() < scored; ++i) {
    const size_t before = order.size();
    for (const Chunk& chunk : chunks) {
      const uint64_t t = chunk.start + i;
      if (i < chunk.tokens && t < scored) order.push_back(static_cast<uint32_t>(t));
    }
    if (order.size() == before) break;
  }
  return order;
}

std::vector<uint8_t> Recomputed(std::span<const uint32_t> order, uint64_t k, uint64_t scored,
                                uint64_t tokens) {
  std::vector<uint8_t> recomputed(tokens);
  for (uint64_t i = 0; i < std::min<uint64_t>(k, order.size()); ++i) recomputed[order[i]] = 1;
  std::fill(recomputed.begin() + static_cast<std::ptrdiff_t>(scored), recomputed.end(), 1);
  return recomputed;
}

CurveLayer MeanOf(const std::vector<CurveLayer>& layers) {
  CurveLayer mean;
  uint64_t with_attention = 0;
  AttentionError attention{0, 0, 0};
  for (const CurveLayer& layer : layers) {
    mean.v_sum += layer.v_sum;
    mean.k_sum += layer.k_sum;
    for (Remaining CurveLayer::*part : {&CurveLayer::selected, &CurveLayer::oracle,
                                        &CurveLayer::random, &CurveLayer::first_of_chunk}) {
      (mean.*part).v += (layer.*part).v;
      (mean.*part).k += (layer.*part).k;
    }
    if (!layer.attention) continue;
    ++with_attention;
    attention.dev_l2 += layer.attention->dev_l2;
    attention.out_rel_l2 += layer.attention->out_rel_l2;
    attention.out_cos_mean += layer.attention->out_cos_mean;
  }
  if (layers.empty()) return mean;
  const auto count = static_cast<double>(layers.size());
  mean.v_sum /= count;
  mean.k_sum /= count;
  for (Remaining CurveLayer::*part : {&CurveLayer::selected, &CurveLayer::oracle,
                                      &CurveLayer::random, &CurveLayer::first_of_chunk}) {
    (mean.*part).v /= count;
    (mean.*part).k /= count;
  }
  if (with_attention == 0) return mean;
  const auto rows = static_cast<double>(with_attention);
  mean.attention = AttentionError{attention.dev_l2 / rows, attention.out_rel_l2 / rows,
                                  attention.out_cos_mean / rows};
  return mean;
}

std::vector<CurvePoint> MeasureCurve(const std::vector<LayerDeviation>& layers,
                                     const std::vector<Ranking>& rankings,
                                     const std::vector<Chunk>& chunks, const Request& request,
                                     size_t check_place, size_t first_blended, uint64_t tokens,
                                     ThreadPool& pool) {
  const Ranking& check = rankings[check_place];
  const uint64_t scored = check.scores().size();
  const std::vector<uint32_t> random = RandomOrder(scored, request.seed);
  const std::vector<uint32_t> first = FirstOfChunkOrder(chunks, scored);
  std::vector<CurvePoint> curve;
  for (const double ratio : request.ratios) {
    CurvePoint point;
    point.ratio = ratio;
    const uint64_t k = TopCount(scored, ratio);
    // LMCache's blender leaves what lies beyond the scored tokens to the engine.
    point.selection = check.Select(k, request.engine == Engine::kLmCache ? scored : tokens);
    const auto blended = static_cast<double>(layers.size() - 1 - check_place);
    const double rows = static_cast<double>(k + tokens - scored) / static_cast<double>(tokens);
    point.compute_share = (static_cast<double>(check_place + 1) + blended * rows) /
                          static_cast<double>(layers.size());
    const std::vector<uint8_t> selected = Recomputed(check.order(), k, scored, tokens);
    const std::vector<uint8_t> at_random = Recomputed(random, k, scored, tokens);
    const std::vector<uint8_t> at_starts = Recomputed(first, k, scored, tokens);
    point.layers.resize(layers.size() - first_blended);
    pool.ParallelFor(point.layers.size(), [&](uint64_t i) {
      const LayerDeviation& layer = layers[first_blended + i];
      CurveLayer& out = point.layers[i];
      out.layer = layer.layer;
      out.v_sum = Left(layer.v.tokens, selected);
      out.k_sum = Left(layer.k.tokens, selected);
      out.selected = {Share(out.v_sum, layer.v.sum), Share(out.k_sum, layer.k.sum)};
      out.oracle =
          RemainingOf(layer, Recomputed(rankings[first_blended + i].order(), k, scored, tokens));
      out.random = RemainingOf(layer, at_random);
      out.first_of_chunk = RemainingOf(layer, at_starts);
    });
    point.mean = MeanOf(point.layers);
    curve.push_back(std::move(point));
  }
  return curve;
}

}  // namespace kv::blend
