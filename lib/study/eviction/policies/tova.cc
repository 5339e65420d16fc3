// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

class TovaRule : public Rule {
 public:
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t position, uint64_t keep) override {
    const uint32_t heads = caches.attention.query_heads();
    std::vector<Scores> rows(heads);
    caches.pool->ParallelFor(heads, [&](uint64_t head) {
      rows[head] = RowWeights(caches, static_cast<uint32_t>(head), position);
    });
    Scores mean(caches.size());
    for (const Scores& row : rows) {
      for (size_t j = 0; j < mean.size(); ++j) mean[j] += row[j];
    }
    return {TopTokens(mean, keep, 1)};
  }
};

}  // namespace

std::unique_ptr<Rule> MakeTovaRule(const RuleSetup&) { return std::make_unique<TovaRule>(); }

}  // namespace kv::eviction
