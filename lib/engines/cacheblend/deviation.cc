// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/deviation.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/core/base/checked.h"
#include "lib/core/kernels/deviation.h"
#include "lib/engines/cacheblend/hkvd.h"
#include "lib/study/statistics/quantile.h"

namespace kv::blend {
namespace {

constexpr uint64_t kDeviationTokens = 16;  // both blocks of floats stay in near caches

// Hands out runs of tokens: `body(begin, end, full, old)` with room for a block of each.
void ForTokenRuns(ThreadPool& pool, uint64_t tokens, uint64_t channels,
                  const std::function<void(uint64_t, uint64_t, float*, float*)>& body) {
  const uint64_t runs = std::clamp<uint64_t>(CeilDiv(tokens, kDeviationTokens), 1,
                                             uint64_t{4} * static_cast<uint64_t>(pool.threads()));
  const uint64_t step = CeilDiv(tokens, runs);
  pool.ParallelFor(runs, [&](uint64_t run) {
    std::vector<float> full(kDeviationTokens * channels), old(kDeviationTokens * channels);
    const uint64_t end = std::min(tokens, (run + 1) * step);
    for (uint64_t begin = run * step; begin < end; begin += kDeviationTokens) {
      body(begin, std::min(end, begin + kDeviationTokens), full.data(), old.data());
    }
  });
}

void Summarise(const std::vector<Chunk>& chunks, const std::vector<double>& full2,
               TensorDeviation& out) {
  std::vector<double> relative(out.tokens.size());
  for (size_t t = 0; t < relative.size(); ++t) {
    out.sum += out.tokens[t];
    out.full_sum += full2[t];
    relative[t] = out.tokens[t] == 0 ? 0 : std::sqrt(out.tokens[t] / full2[t]);
  }
  for (const Chunk& chunk : chunks) {
    double sum = 0;
    uint64_t finite = 0;
    for (uint64_t t = chunk.start; t < chunk.start + chunk.tokens; ++t) {
      if (!std::isfinite(relative[t])) continue;
      sum += relative[t];
      ++finite;
    }
    out.chunk_means.push_back(finite == 0 ? NAN : sum / static_cast<double>(finite));
  }
  std::erase_if(relative, [](double value) { return !std::isfinite(value); });
  out.nonfinite = out.tokens.size() - relative.size();
  if (relative.empty()) {  // a deviation of nothing is no 0
    out.rel_mean = out.rel_p50 = out.rel_p90 = out.rel_p99 = out.rel_max = NAN;
    return;
  }
  for (const double value : relative) out.rel_mean += value;
  out.rel_mean /= static_cast<double>(relative.size());
  std::sort(relative.begin(), relative.end());
  out.rel_p50 = QuantileOfSorted(relative, 0.50);
  out.rel_p90 = QuantileOfSorted(relative, 0.90);
  out.rel_p99 = QuantileOfSorted(relative, 0.99);
  out.rel_max = relative.back();
}

TensorDeviation Measure(const CachePair& caches, size_t layer, bool is_value, ThreadPool& pool) {
  const uint64_t tokens = caches.tokens(), covered = caches.covered();
  const uint64_t channels = caches.layers()[layer].channels(is_value);
  TensorDeviation out;
  out.tokens.resize(tokens);
  std::vector<double> full2(tokens);
  ForTokenRuns(pool, tokens, channels, [&](uint64_t begin, uint64_t end, float* full, float* old) {
    caches.ReadFull(layer, is_value, begin, end - begin, full);
    const uint64_t both = std::clamp(covered, begin, end);
    caches.ReadOld(layer, is_value, begin, both - begin, old);
    for (uint64_t t = begin; t < end; ++t) {
      const float* row = full + (t - begin) * channels;
      const SquaredDeviation row_deviation =
          DeviationOfRow(row, t < both ? old + (t - begin) * channels : row, channels);
      out.tokens[t] = t < both ? row_deviation.difference : 0;
      full2[t] = row_deviation.full;
    }
  });
  Summarise(caches.old().chunks, full2, out);
  return out;
}

}  // namespace

double TensorDeviation::relative() const { return sum == 0 ? 0 : std::sqrt(sum / full_sum); }

std::vector<LayerDeviation> MeasureDeviations(const CachePair& caches, ThreadPool& pool,
                                              Progress* progress) {
  std::vector<LayerDeviation> layers;
  if (progress != nullptr) progress->Begin(caches.bytes());
  for (size_t i = 0; i < caches.layers().size(); ++i) {
    layers.push_back({caches.layers()[i].index, Measure(caches, i, true, pool),
                      Measure(caches, i, false, pool)});
    caches.Drop(i);
    if (progress != nullptr) progress->Advance(caches.bytes() / caches.layers().size());
  }
  return layers;
}

std::vector<float> ScoresInDtype(const CachePair& caches, size_t layer, uint64_t count, DType dtype,
                                 ThreadPool& pool) {
  const uint64_t channels = caches.layers()[layer].channels(true);
  std::vector<float> scores(count);
  ForTokenRuns(pool, count, channels, [&](uint64_t begin, uint64_t end, float* full, float* old) {
    caches.ReadFull(layer, true, begin, end - begin, full);
    caches.ReadOld(layer, true, begin, end - begin, old);
    for (uint64_t t = begin; t < end; ++t) {
      const uint64_t at = (t - begin) * channels;
      scores[t] = ScoreInDtype(full + at, old + at, channels, dtype);
    }
  });
  return scores;
}

double DoubleRotationError(const CachePair& caches, size_t layer, ThreadPool& pool) {
  const uint64_t covered = caches.covered();
  const uint64_t channels = caches.layers()[layer].channels(false);
  std::vector<SquaredDeviation> tokens(covered);
  ForTokenRuns(pool, covered, channels,
               [&](uint64_t begin, uint64_t end, float* once, float* twice) {
                 caches.ReadOld(layer, false, begin, end - begin, once);
                 std::copy_n(once, (end - begin) * channels, twice);
                 caches.TurnAgain(layer, begin, end - begin, twice);
                 for (uint64_t t = begin; t < end; ++t) {
                   const uint64_t at = (t - begin) * channels;
                   tokens[t] = DeviationOfRow(once + at, twice + at, channels);
                 }
               });
  double difference = 0, norm = 0;
  for (const SquaredDeviation& token : tokens) {
    difference += token.difference;
    norm += token.full;
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace kv::blend
