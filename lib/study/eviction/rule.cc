// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

constexpr size_t kMostSums = 4;  // kinds of rules times moments of the first eviction

}  // namespace

SharedRows::SharedRows(const LayerAttention& attention, ThreadPool& pool)
    : whole_(WholeCache(attention)), logits_(attention, whole_, pool) {}

std::vector<KeptKeys> SharedRows::WholeCache(const LayerAttention& attention) {
  std::vector<KeptKeys> whole;
  for (uint32_t h = 0; h < attention.kv_heads(); ++h) {
    whole.emplace_back(attention, h);
    whole.back().AppendUpTo(attention.end_row());
  }
  return whole;
}

HeadSums SharedRows::SumsOf(SummedRows rows, const std::function<HeadSums()>& sum) {
  // Held while summing: who asks for the same rows meanwhile would only sum them as well.
  const std::lock_guard lock(mutex_);
  for (const auto& [summed, sums] : sums_) {
    if (summed == rows) return sums;
  }
  HeadSums sums = sum();
  if (sums_.size() < kMostSums) {
    sums_.emplace_back(std::move(rows), sums);
  } else {
    sums_[oldest_] = {std::move(rows), sums};
    oldest_ = (oldest_ + 1) % kMostSums;
  }
  return sums;
}

}  // namespace kv::eviction
