// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

// The last rows of the prompt score the keys before them. On a budget this happens once: the scores
// then stay, and later tokens have none and are kept until they alone fill the budget.
class SnapKvRule : public Rule {
 public:
  explicit SnapKvRule(const PolicyOptions& options)
      : window_(options.paper.window),
        kernel_(static_cast<int64_t>(options.paper.kernel)),
        once_(options.on_budget) {}

  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }

  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t position, uint64_t keep) override {
    if (!scores_.empty()) return ChooseAgain(caches, keep);
    const uint64_t rows = position + 1 - caches.attention.first_row();
    const uint64_t window = std::min({window_, keep, rows, caches.size()});
    std::vector<Scores> scores(caches.of_head.size());
    std::vector<KeepPlan> plans(scores.size());
    caches.pool->ParallelFor(plans.size(), [&](uint64_t h) {
      scores[h] = Look(caches, static_cast<uint32_t>(h), position, window);
      plans[h] = TopTokens(scores[h], keep, window);
    });
    if (!once_) return plans;
    window_begin_ = position + 1 - window;
    scores_ = std::move(scores);
    Compact(plans);
    return plans;
  }

 private:
  Scores Look(const LayerCaches& caches, uint32_t kv_head, uint64_t position,
              uint64_t window) const {
    Scores sums(caches.size());
    const uint32_t group = caches.attention.group();
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (uint64_t row = position + 1 - window; row <= position; ++row) {
        const Scores weights = RowWeights(caches, head, row);
        for (size_t j = 0; j < sums.size(); ++j) sums[j] += weights[j];
      }
    }
    return Pooled(sums, sums.size() - window);
  }

  std::vector<KeepPlan> ChooseAgain(const LayerCaches& caches, uint64_t keep) {
    std::vector<KeepPlan> plans;
    for (size_t h = 0; h < scores_.size(); ++h) {
      const auto positions = caches.of_head[h].positions();
      scores_[h].resize(positions.size());
      const auto later =
          positions.end() - std::lower_bound(positions.begin(), positions.end(), window_begin_);
      plans.push_back(TopTokens(scores_[h], keep, static_cast<uint64_t>(later)));
    }
    Compact(plans);
    return plans;
  }

  void Compact(std::span<const KeepPlan> plans) {
    for (size_t h = 0; h < scores_.size(); ++h) CompactScores(plans[h], scores_[h]);
  }

  // Returns the mean over the kernel's neighbours among the first `count`; positions beyond the
  // ends count as zeros.
  Scores Pooled(const Scores& sums, size_t count) const {
    Scores pooled(sums.size());
    for (int64_t j = 0; j < static_cast<int64_t>(count); ++j) {
      const int64_t from = std::max<int64_t>(0, j - kernel_ / 2);
      const int64_t to = std::min<int64_t>(static_cast<int64_t>(count), j + kernel_ / 2 + 1);
      double sum = 0;
      for (int64_t i = from; i < to; ++i) sum += sums[static_cast<size_t>(i)];
      pooled[static_cast<size_t>(j)] = sum / static_cast<double>(kernel_);
    }
    return pooled;
  }

  uint64_t window_;
  int64_t kernel_;
  bool once_;
  uint64_t window_begin_ = 0;   // position
  std::vector<Scores> scores_;  // [kv head], once they are computed
};

}  // namespace

std::unique_ptr<Rule> MakeSnapKvRule(const RuleSetup& setup) {
  return std::make_unique<SnapKvRule>(setup.options);
}

}  // namespace kv::eviction
