// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Deviations of the chunks' keys and values from the full run's, the ranking of tokens by them, and
// a check that the inputs belong together.
#include "lib/engines/cacheblend/deviation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/kernels/deviation.h"
#include "lib/study/statistics/distribution.h"

namespace kv::blend {
namespace {

float RoundTo(DType dtype, float value) {
  if (dtype == DType::kF16) return F16ToF32(F32ToF16(value));
  if (dtype == DType::kBF16) return BF16ToF32(F32ToBF16(value));
  return value;
}

// Returns ranks from 1; equal values share the mean of their ranks.
std::vector<double> AverageRanks(std::span<const double> values) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return values[a] != values[b] ? values[a] < values[b] : a < b;
  });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double rank = static_cast<double>(begin + 1 + end) / 2;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = rank;
    begin = end;
  }
  return ranks;
}

constexpr uint64_t kDeviationTokens = 16;  // both blocks of floats stay in the L1 and L2 caches

// Divides the tokens among threads: calls `body(begin, end, full, old)` with buffers for a block of
// each cache.
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
  if (relative.empty()) {  // without tokens the deviation is undefined, not 0
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

constexpr uint64_t kSampleTokens = 48;  // enough to tell how the keys of a dump are rotated

// Returns the largest relative deviation that counts as rounding to the type.
double MostByRounding(DType dtype) {
  if (IsBlockQuantised(dtype)) return 0.25;
  if (dtype == DType::kBF16) return 0.03;
  if (dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2) return 0.25;
  return 0.01;
}

// Stored old and full keys of some tokens of the first layer.
struct Sample {
  std::vector<uint64_t> tokens;
  std::vector<std::vector<float>> full, old;
};

Sample TakeSample(const CachePair& caches) {
  Sample sample;
  const uint64_t covered = caches.covered(), channels = caches.layers().front().channels(false);
  const uint64_t count = std::min(covered, kSampleTokens);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t t = i * covered / count;
    sample.tokens.push_back(t);
    sample.full.emplace_back(channels);
    sample.old.emplace_back(channels);
    caches.ReadFull(0, false, t, 1, sample.full.back().data());
    caches.old().rows.Read(0, false, t, 1, sample.old.back().data());
  }
  return sample;
}

struct Reading {
  KeyState state = KeyState::kUnrotated;
  int64_t later_first = 0;  // for kLocal: position of the first token of later chunks
  Rope rope;
};

std::string Describe(const Reading& reading, const CachePair& caches) {
  std::string text = reading.state == KeyState::kUnrotated ? "--chunks-rope unrotated"
                     : reading.state == KeyState::kGlobal  ? "--chunks-rope global"
                                                           : "--chunks-rope local";
  if (reading.state == KeyState::kLocal && reading.later_first == 1) {
    const std::vector<KvRows::Part>& parts = caches.old().rows.parts();
    text += parts.size() > 1 && parts[1].first_row == 1 ? " --bos drop" : " --bos dropped";
  }
  if (reading.state != KeyState::kGlobal || caches.full().unrotated) {
    text += fmt::format(" --rope-base {} --rope-style {}", reading.rope.theta,
                        Name(reading.rope.pairs));
  }
  return text;
}

double MeasureOutputError(const Reading& reading, const Sample& sample, const CachePair& caches) {
  const KvRows::Layer& shape = caches.layers().front();
  std::vector<int64_t> shifts;
  for (const uint64_t t : sample.tokens) {
    const auto position = static_cast<int64_t>(t);
    int64_t old = 0;
    if (reading.state == KeyState::kGlobal) old = position;
    if (reading.state == KeyState::kLocal) {
      for (const Chunk& chunk : caches.old().chunks) {
        if (t < chunk.start) break;
        old = position - static_cast<int64_t>(chunk.start) +
              (chunk.is_prefix() ? 0 : reading.later_first);
      }
    }
    shifts.push_back(position - old);
  }
  const RopeTable table(reading.rope, shape.k_dim, shifts);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    std::vector<float> turned = sample.old[i];
    table.Rotate(i, shape.heads, turned.data());
    const SquaredDeviation row =
        DeviationOfRow(sample.full[i].data(), turned.data(), turned.size());
    difference += row.difference;
    norm += row.full;
  }
  return norm == 0 ? 0 : std::sqrt(difference / norm);
}

// Returns the usual interpretation of a dump's keys with the least error, and that error.
std::pair<Reading, double> BestReading(const CachePair& caches) {
  const Sample sample = TakeSample(caches);
  const Rope given = caches.rope().value_or(ModelRope{}).rope;
  std::pair<Reading, double> best{{}, std::numeric_limits<double>::infinity()};
  const auto consider = [&](const Reading& reading) {
    const double error = MeasureOutputError(reading, sample, caches);
    if (error < best.second) best = {reading, error};
  };
  consider({KeyState::kGlobal, 0, given});
  for (const RopePairs pairs : {given.pairs, RopePairs::kHalves, RopePairs::kNeighbours}) {
    for (const double theta : {given.theta, 1e4, 5e5, 1e6, 1e7}) {
      Rope rope = given;
      rope.pairs = pairs;
      rope.theta = theta;
      consider({KeyState::kUnrotated, 0, rope});
      consider({KeyState::kLocal, 0, rope});
      consider({KeyState::kLocal, 1, rope});
    }
  }
  return best;
}

}  // namespace

uint64_t TopCount(uint64_t scored, double ratio) {
  if (!(ratio >= 0 && ratio <= 1)) {
    throw Error(Finding::kUsage, "recompute ratio {}: expected 0 to 1", ratio);
  }
  return static_cast<uint64_t>(static_cast<double>(scored) * ratio);
}

void RequireSuffix(uint64_t tokens, uint64_t suffix) {
  if (suffix <= tokens) return;
  throw Error(Finding::kUsage, "a suffix of {} tokens, the prompt has {}", suffix, tokens);
}

float ScoreInDtype(const float* full, const float* old, uint64_t count, DType dtype) {
  double sum = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const float difference = RoundTo(dtype, full[i] - old[i]);
    sum += RoundTo(dtype, difference * difference);
  }
  return RoundTo(dtype, static_cast<float>(sum));
}

Ranking::Ranking(std::vector<float> scores) : scores_(std::move(scores)), order_(scores_.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  const auto better = [this](uint32_t a, uint32_t b) {
    const float x = scores_[a], y = scores_[b];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(x);
    return x != y && !std::isnan(x) ? x > y : a < b;
  };
  std::sort(order_.begin(), order_.end(), better);
  for (const float score : scores_) nonfinite_ += !std::isfinite(score);
}

Selection Ranking::Select(uint64_t topk, uint64_t tokens) const {
  KV_ASSERT(topk <= order_.size() && order_.size() <= tokens);
  Selection selection;
  selection.topk = topk;
  selection.indices.assign(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(topk));
  std::sort(selection.indices.begin(), selection.indices.end());
  for (uint64_t t = order_.size(); t < tokens; ++t) selection.indices.push_back(t);
  if (topk > 0) selection.kept_min = scores_[order_[topk - 1]];
  if (topk < order_.size()) selection.dropped_max = scores_[order_[topk]];
  if (!selection.kept_min || !selection.dropped_max) return selection;
  const float kept = *selection.kept_min, dropped = *selection.dropped_max;
  const bool tied = kept == dropped || (std::isnan(kept) && std::isnan(dropped));
  selection.margin = tied ? 0.0 : static_cast<double>(kept) - static_cast<double>(dropped);
  if (tied) {
    for (const float score : scores_) {
      selection.ties += score == kept || (std::isnan(score) && std::isnan(kept));
    }
  }
  return selection;
}

std::optional<Overlap> MeasureOverlap(std::span<const uint32_t> a, std::span<const uint32_t> b,
                                      uint64_t k) {
  if (k == 0) return std::nullopt;
  std::vector<uint8_t> in_a(a.size());
  for (uint64_t i = 0; i < k; ++i) in_a[a[i]] = 1;
  uint64_t both = 0;
  for (uint64_t i = 0; i < k; ++i) both += in_a[b[i]];
  const auto shared = static_cast<double>(both);
  return Overlap{shared / static_cast<double>(k), shared / static_cast<double>(2 * k - both)};
}

std::optional<double> Spearman(std::span<const double> a, std::span<const double> b) {
  KV_ASSERT(a.size() == b.size());
  const auto is_nan = [](double value) { return std::isnan(value); };
  if (std::any_of(a.begin(), a.end(), is_nan) || std::any_of(b.begin(), b.end(), is_nan)) {
    return std::nullopt;
  }
  const std::vector<double> x = AverageRanks(a), y = AverageRanks(b);
  const double mean = (static_cast<double>(a.size()) + 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  if (xx == 0 || yy == 0) return std::nullopt;
  return xy / std::sqrt(xx * yy);
}

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
                 caches.RotateAgain(layer, begin, end - begin, twice);
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

std::vector<std::string> DiagnoseFirstLayer(const CachePair& caches, const LayerDeviation& first) {
  if (first.layer != 0) return {};
  const double most = MostByRounding(caches.dtype());
  if (first.v.relative() > most) {
    size_t worst = 0;
    for (size_t i = 0; i < first.v.chunk_means.size(); ++i) {
      if (first.v.chunk_means[i] > first.v.chunk_means[worst]) worst = i;
    }
    return {
        fmt::format("V of layer 0 differs by {:.3g} of its norm, most in chunk {}: it depends on "
                    "the token alone, so the chunks are not the prompt's tokens",
                    first.v.relative(), worst)};
  }
  if (!(first.k.relative() > most)) return {};
  std::string text = fmt::format(
      "K of layer 0 differs by {:.3g} of its norm after rotation, V does not: the keys are not "
      "rotated as stated",
      first.k.relative());
  const auto [reading, error] = BestReading(caches);
  if (error <= most) text += fmt::format("; {} would fit", Describe(reading, caches));
  return {text};
}

}  // namespace kv::blend
