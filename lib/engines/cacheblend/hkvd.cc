// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/hkvd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"

namespace kv::blend {
namespace {

float RoundTo(DType dtype, float value) {
  if (dtype == DType::kF16) return F16ToF32(F32ToF16(value));
  if (dtype == DType::kBF16) return BF16ToF32(F32ToBF16(value));
  return value;
}

// Ranks from 1; equal values share the mean of theirs.
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

}  // namespace

uint64_t TopCount(uint64_t scored, double ratio) {
  if (!(ratio >= 0 && ratio <= 1)) {
    throw Error(Finding::kUsage, fmt::format("recompute ratio {}: expected 0 to 1", ratio));
  }
  return static_cast<uint64_t>(static_cast<double>(scored) * ratio);
}

void RequireSuffix(uint64_t tokens, uint64_t suffix) {
  if (suffix <= tokens) return;
  throw Error(Finding::kUsage,
              fmt::format("a suffix of {} tokens, the prompt has {}", suffix, tokens));
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

std::optional<Overlap> OverlapOf(std::span<const uint32_t> a, std::span<const uint32_t> b,
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

}  // namespace kv::blend
