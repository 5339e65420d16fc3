// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

// Heavy hitters per kv head: attention is summed over all rows since the prompt's first, added over
// the query heads of a group; one share of the budget goes to the heaviest tokens, the rest to the
// most recent ones. Scores move with their tokens.
class HeavyHitterRule : public Rule {
 public:
  explicit HeavyHitterRule(const PolicyOptions& options)
      : weights_(options.weights), heavy_share_(options.paper.heavy_share) {}
  bool wants_prefill() const override { return true; }
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  void Observe(LayerCaches& caches, uint64_t begin, uint64_t end) override {
    scores_.resize(caches.of_head.size());
    const std::vector<float> ones(end - begin, 1.0f);
    const auto sums = ColumnSums(caches, begin, ones, weights_);
    for (size_t h = 0; h < sums.size(); ++h) {
      scores_[h].resize(sums[h].size());
      for (size_t j = 0; j < sums[h].size(); ++j) scores_[h][j] += sums[h][j];
    }
  }
  std::vector<KeepPlan> Choose(LayerCaches&, uint64_t, uint64_t keep) override {
    std::vector<KeepPlan> plans;
    for (std::vector<double>& scores : scores_) {
      const double heavy = heavy_share_ * static_cast<double>(keep);
      plans.push_back(TopTokens(scores, keep, keep - static_cast<uint64_t>(heavy)));
      CompactScores(plans.back(), scores);
    }
    return plans;
  }

 private:
  WeightRule weights_;
  double heavy_share_;
  std::vector<std::vector<double>> scores_;
};

}  // namespace

std::unique_ptr<Rule> MakeHeavyHitterRule(const RuleSetup& setup) {
  return std::make_unique<HeavyHitterRule>(setup.options);
}

}  // namespace kv::eviction
