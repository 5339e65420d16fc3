// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

constexpr int kUnusedBits = 11;  // a double holds 53 bits

class RandomRule : public Rule {
 public:
  explicit RandomRule(const PolicyOptions& options) : seed_(options.seed) {}
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  // Gives every (layer, head, position) a fixed random number, so that the choice does not depend
  // on the order of evictions.
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    lots_.resize(caches.of_head.size());
    std::vector<KeepPlan> plans;
    for (size_t h = 0; h < caches.of_head.size(); ++h) {
      const uint64_t stream =
          SplitMix(seed_ + SplitMix(uint64_t{caches.attention.layer()} << 32 | h));
      const auto positions = caches.of_head[h].positions();
      for (const uint32_t position : positions.subspan(lots_[h].size())) {
        lots_[h].push_back(static_cast<double>(SplitMix(stream + position) >> kUnusedBits));
      }
      plans.push_back(TopTokens(lots_[h], keep, 0));
      CompactScores(plans.back(), lots_[h]);
    }
    return plans;
  }

 private:
  uint64_t seed_;
  std::vector<std::vector<double>> lots_;
};

}  // namespace

std::unique_ptr<Rule> MakeRandomRule(const RuleSetup& setup) {
  return std::make_unique<RandomRule>(setup.options);
}

}  // namespace kv::eviction
