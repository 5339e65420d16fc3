// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <functional>

#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

std::vector<KeepPlan> PerHead(LayerCaches& caches, uint64_t keep, uint64_t last,
                              const std::function<Scores(uint32_t kv_head)>& scores) {
  std::vector<KeepPlan> plans(caches.of_head.size());
  caches.pool->ParallelFor(plans.size(), [&](uint64_t h) {
    plans[h] = TopTokens(scores(static_cast<uint32_t>(h)), keep, last);
  });
  return plans;
}

// Knows the rows to come: column sums of the rows after each eviction, over the whole uncompacted
// cache. One pass from the end computes them, because they do not depend on what is kept.
class OracleRule : public Rule {
 public:
  OracleRule(const LayerAttention& attention, const LayerSchedule& schedule, ThreadPool& pool) {
    LayerCaches whole{attention, &pool, nullptr, {}};
    for (uint32_t h = 0; h < attention.kv_heads(); ++h) {
      whole.of_head.emplace_back(attention, h);
      whole.of_head.back().AppendUpTo(attention.end_row());
    }
    std::vector<Scores> sums(attention.kv_heads(), Scores(attention.end_row()));
    uint64_t end = attention.end_row();
    for (auto event = schedule.evictions.rbegin(); event != schedule.evictions.rend(); ++event) {
      const std::vector<float> ones(end - (event->token + 1), 1.0f);
      if (!ones.empty()) {
        const auto more = ColumnSums(whole, event->token + 1, ones, WeightRule::kSoftmax);
        for (size_t h = 0; h < sums.size(); ++h) {
          for (size_t j = 0; j < sums[h].size(); ++j) sums[h][j] += more[h][j];
        }
      }
      end = event->token + 1;
      future_.push_back(sums);
    }
    std::reverse(future_.begin(), future_.end());
  }
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    const std::vector<Scores>& future = future_[next_++];
    return PerHead(caches, keep, 0, [&](uint32_t h) {
      Scores scores;
      for (const uint32_t position : caches.of_head[h].positions()) {
        scores.push_back(future[h][position]);
      }
      return scores;
    });
  }

 private:
  std::vector<std::vector<Scores>> future_;  // [eviction][kv head][position]
  size_t next_ = 0;
};

// The same rule for evictions at every step: the future of the first eviction is summed up once,
// and each row that passes is subtracted again. A row has the same bits both times.
class PassingOracleRule : public Rule {
 public:
  PassingOracleRule(const LayerSchedule& schedule, const LayerCaches& caches)
      : first_(schedule.evictions.front().token + 1),
        future_(caches.attention.kv_heads(), Scores(caches.attention.end_row())) {
    LogitRows& logits = caches.shared->logits();
    scales_.resize(caches.attention.end_row() - std::min(first_, caches.attention.end_row()));
    for (uint64_t row = logits.From(first_); row < caches.attention.end_row();
         row += logits.stride()) {
      logits.LoadTileAt(row);
      AddRow(caches, row);
    }
  }
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  void Observe(LayerCaches& caches, uint64_t begin, uint64_t end) override {
    const LogitRows& logits = caches.shared->logits();
    for (uint64_t row = logits.From(std::max(begin, first_)); row < end; row += logits.stride()) {
      SubtractRow(caches, row);
    }
  }
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    return PerHead(caches, keep, 0, [&](uint32_t h) {
      Scores scores;
      for (const uint32_t p : caches.of_head[h].positions()) scores.push_back(future_[h][p]);
      return scores;
    });
  }

 private:
  void AddRow(const LayerCaches& caches, uint64_t row) {
    const uint32_t group = caches.attention.group();
    scales_[row - first_].resize(caches.attention.query_heads());
    caches.pool->ParallelFor(future_.size(), [&](uint64_t h) {
      std::vector<float> weights, scratch;
      for (uint32_t head = static_cast<uint32_t>(h) * group, end = head + group; head < end;
           ++head) {
        const float* logits = caches.shared->logits().Row(head, row);
        weights.assign(logits, logits + row + 1);
        const SoftmaxScale scale = Softmax(weights, scratch);
        scales_[row - first_][head] = scale;
        if (scale.factor == 0) continue;
        for (size_t j = 0; j < weights.size(); ++j) {
          future_[h][j] += static_cast<double>(weights[j]);
        }
      }
    });
  }
  // Subtracts at the positions that are held; the others are never asked for again.
  void SubtractRow(const LayerCaches& caches, uint64_t row) {
    const uint32_t group = caches.attention.group();
    caches.pool->ParallelFor(future_.size(), [&](uint64_t h) {
      const auto held = caches.of_head[h].positions();
      const auto seen = held.first(
          static_cast<size_t>(std::upper_bound(held.begin(), held.end(), row) - held.begin()));
      std::vector<float> weights;
      for (uint32_t head = static_cast<uint32_t>(h) * group, end = head + group; head < end;
           ++head) {
        const SoftmaxScale& scale = scales_[row - first_][head];
        if (scale.factor == 0) continue;
        caches.shared->logits().Pick(head, row, seen, weights);
        WeighAs(scale, weights);
        for (size_t i = 0; i < seen.size(); ++i) {
          future_[h][seen[i]] -= static_cast<double>(weights[i]);
        }
      }
    });
  }

  uint64_t first_;
  std::vector<Scores> future_;                     // [kv head][position]
  std::vector<std::vector<SoftmaxScale>> scales_;  // [row from first_][query head]
};

}  // namespace

std::unique_ptr<Rule> MakeOracleRule(const RuleSetup& setup) {
  if (setup.options.on_budget) {
    return std::make_unique<PassingOracleRule>(setup.schedule, setup.caches);
  }
  return std::make_unique<OracleRule>(setup.caches.attention, setup.schedule, *setup.caches.pool);
}

}  // namespace kv::eviction
