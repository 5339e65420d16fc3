// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/policy_rules.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/checked.h"
#include "lib/core/base/error.h"

namespace kv::eviction {
namespace {

// The engine's rule on exact terms: the EMA is kept per token, so that a score follows its token
// through every compaction; a block's score is the sum over the tokens it holds now.
class BlockRule : public Rule {
 public:
  explicit BlockRule(const PolicyOptions& options) : options_(options) {}

  uint32_t units(const LayerCaches& caches) const override {
    return options_.granularity == Granularity::kLayer ? 1 : caches.attention.kv_heads();
  }

  bool wants_prefill() const override { return options_.on_budget; }

  // score = alpha * score + (1 - alpha) * mass / heads, row after row: unrolled, row r of R counts
  // (1 - alpha) * alpha^(R - 1 - r).
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
      // Whole blocks above the floor: as a target, what they come to is itself again.
      const BlockBudget budget = BlockBudgetOf(options_.config, scores.size(), keep);
      BlockChoice decision = KeepBlocks(options_.config, budget, of_block);
      KV_ASSERT(decision.kept == keep);
      CompactScores(decision.plan, scores);
      plans.push_back(std::move(decision.plan));
    }
    return plans;
  }

 private:
  // The last rows; those before have decayed below what a double's sum can hold.
  static uint64_t RowsThatCount(double alpha) {
    if (alpha >= 1) return UINT64_MAX;
    if (alpha <= 0) return 1;
    return 1 + static_cast<uint64_t>(std::log(1e-17) / std::log(alpha));
  }

  PolicyOptions options_;
  std::vector<std::vector<double>> scores_;
};

// Per kv head: attention summed over all rows since the prompt's first, the query heads of a group
// added; a share of the budget is heavy, the rest recent. Scores move with their tokens.
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

class RandomRule : public Rule {
 public:
  explicit RandomRule(const PolicyOptions& options) : seed_(options.seed) {}
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  // A fixed lot for every (layer, head, position): what is drawn does not depend on the order.
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    lots_.resize(caches.of_head.size());
    std::vector<KeepPlan> plans;
    for (size_t h = 0; h < caches.of_head.size(); ++h) {
      const uint64_t stream = Mix(seed_ + Mix(uint64_t{caches.attention.layer()} << 32 | h));
      const auto positions = caches.of_head[h].positions();
      for (const uint32_t position : positions.subspan(lots_[h].size())) {
        lots_[h].push_back(static_cast<double>(Mix(stream + position) >> 11));
      }
      plans.push_back(TopTokens(lots_[h], keep, 0));
      CompactScores(plans.back(), lots_[h]);
    }
    return plans;
  }

 private:
  static uint64_t Mix(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  uint64_t seed_;
  std::vector<std::vector<double>> lots_;
};

class WindowRule : public Rule {
 public:
  explicit WindowRule(uint64_t sinks) : sinks_(sinks) {}
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    const auto n = static_cast<uint32_t>(caches.size()), kept = static_cast<uint32_t>(keep);
    const auto sinks = static_cast<uint32_t>(std::min(sinks_, keep));
    KeepPlan plan;
    Append(plan, {0, sinks});
    Append(plan, {n - (kept - sinks), kept - sinks});
    return {plan};
  }

 private:
  uint64_t sinks_;
};

}  // namespace

std::unique_ptr<Rule> MakeBlockRule(const PolicyOptions& options) {
  return std::make_unique<BlockRule>(options);
}
std::unique_ptr<Rule> MakeHeavyHitterRule(const PolicyOptions& options) {
  return std::make_unique<HeavyHitterRule>(options);
}
std::unique_ptr<Rule> MakeRandomRule(const PolicyOptions& options) {
  return std::make_unique<RandomRule>(options);
}
std::unique_ptr<Rule> MakeWindowRule(uint64_t sinks) { return std::make_unique<WindowRule>(sinks); }

}  // namespace kv::eviction
