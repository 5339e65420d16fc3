// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

constexpr double kNegligible = 1e-17;  // a smaller weight would vanish in a sum of doubles

// The engine's rule with exact sums: the moving average is kept per token, so that a score follows
// its token through every compaction; a block's score is the sum over the tokens that it holds now.
class BlockRule : public Rule {
 public:
  explicit BlockRule(const PolicyOptions& options) : options_(options) {}

  uint32_t units(const LayerCaches& caches) const override {
    return options_.granularity == Granularity::kLayer ? 1 : caches.attention.kv_heads();
  }

  bool wants_prefill() const override { return options_.on_budget; }

  // Computes score = alpha * score + (1 - alpha) * mass / heads, row after row: unrolled, row r of
  // R has weight (1 - alpha) * alpha^(R - 1 - r).
  void Observe(LayerCaches& caches, uint64_t begin, uint64_t end) override {
    const uint32_t units_here = units(caches);
    scores_.resize(units_here);
    for (auto& scores : scores_) scores.resize(caches.size());
    const double alpha = static_cast<double>(options_.config.ema_alpha);
    if (options_.on_budget) begin = std::max(begin, end - std::min(end, RowsThatCount(alpha)));
    const uint32_t heads = caches.attention.query_heads() / units_here;
    std::vector<float> weights(end - begin);
    double weight = (1 - alpha) / heads;
    for (size_t r = weights.size(); r-- > 0; weight *= alpha) {
      weights[r] = static_cast<float>(weight);
    }
    const auto sums = ColumnSums(caches, begin, weights, options_.weights);
    const double decay = std::pow(alpha, static_cast<double>(weights.size()));
    for (auto& scores : scores_) {
      for (double& score : scores) score *= decay;
    }
    for (size_t h = 0; h < sums.size(); ++h) {
      std::vector<double>& scores = scores_[units_here == 1 ? 0 : h];
      for (size_t j = 0; j < scores.size(); ++j) scores[j] += sums[h][j];
    }
  }

  std::vector<KeepPlan> Choose(LayerCaches&, uint64_t, uint64_t keep) override {
    std::vector<KeepPlan> plans;
    for (std::vector<double>& scores : scores_) {
      const auto block = static_cast<uint64_t>(options_.config.block_tokens);
      std::vector<double> of_block(CeilDiv(scores.size(), block));
      for (size_t j = 0; j < scores.size(); ++j) of_block[j / block] += scores[j];
      // `keep` is a number of whole blocks above the floor, so the target keeps exactly that many.
      const BlockBudget budget = ComputeBlockBudget(options_.config, scores.size(), keep);
      BlockChoice decision = KeepBlocks(options_.config, budget, of_block);
      KV_ASSERT(decision.kept == keep);
      CompactScores(decision.plan, scores);
      plans.push_back(std::move(decision.plan));
    }
    return plans;
  }

 private:
  // Returns how many of the last rows count; earlier ones have decayed below what a double's sum
  // can hold.
  static uint64_t RowsThatCount(double alpha) {
    if (alpha >= 1) return UINT64_MAX;
    if (alpha <= 0) return 1;
    return 1 + static_cast<uint64_t>(std::log(kNegligible) / std::log(alpha));
  }

  PolicyOptions options_;
  std::vector<std::vector<double>> scores_;
};

}  // namespace

std::unique_ptr<Rule> MakeBlockRule(const RuleSetup& setup) {
  return std::make_unique<BlockRule>(setup.options);
}

}  // namespace kv::eviction
