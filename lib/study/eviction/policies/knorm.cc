// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

class KeyNormRule : public Rule {
 public:
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    const size_t dim = caches.attention.head_dim();
    scores_.resize(caches.of_head.size());
    std::vector<KeepPlan> plans(scores_.size());
    caches.pool->ParallelFor(plans.size(), [&](uint64_t h) {
      Scores& scores = scores_[h];
      const auto added = caches.of_head[h].positions().subspan(scores.size());
      const std::vector<float> keys = FloatKeys(caches.attention, added, static_cast<uint32_t>(h));
      for (size_t j = 0; j < added.size(); ++j) scores.push_back(-Norm(&keys[j * dim], dim));
      plans[h] = TopTokens(scores, keep, 0);
      CompactScores(plans[h], scores);
    });
    return plans;
  }

 private:
  std::vector<Scores> scores_;  // [kv head][key]
};

}  // namespace

std::unique_ptr<Rule> MakeKeyNormRule(const RuleSetup&) { return std::make_unique<KeyNormRule>(); }

}  // namespace kv::eviction
