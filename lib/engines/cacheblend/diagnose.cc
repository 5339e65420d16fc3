// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/kernels/deviation.h"

namespace kv::blend {
namespace {

constexpr uint64_t kSampleTokens = 48;

double MostByRounding(DType dtype) {
  if (IsBlockQuantised(dtype)) return 0.25;
  if (dtype == DType::kBF16) return 0.03;
  if (dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2) return 0.25;
  return 0.01;
}

// Old and full keys of some tokens of the first layer, as stored.
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
  int64_t later_first = 0;  // local: position of the first token of later chunks
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

double ErrorOf(const Reading& reading, const Sample& sample, const CachePair& caches) {
  const KvRows::Layer& shape = caches.layers().front();
  std::vector<int64_t> turns;
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
    turns.push_back(position - old);
  }
  const RopeTable table(reading.rope, shape.k_dim, turns);
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

// The usual readings of a dump; the one with the least error.
std::pair<Reading, double> BestReading(const CachePair& caches) {
  const Sample sample = TakeSample(caches);
  const Rope given = caches.rope().value_or(ModelRope{}).rope;
  std::pair<Reading, double> best{{}, std::numeric_limits<double>::infinity()};
  const auto consider = [&](const Reading& reading) {
    const double error = ErrorOf(reading, sample, caches);
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
      "rotated as said",
      first.k.relative());
  const auto [reading, error] = BestReading(caches);
  if (error <= most) text += fmt::format("; {} would fit", Describe(reading, caches));
  return {text};
}

}  // namespace kv::blend
