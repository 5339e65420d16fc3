// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Rules that look at rows around the decision, or at the keys themselves.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/base/error.h"
#include "lib/core/kernels/convert.h"
#include "lib/study/eviction/policy_rules.h"

namespace kv::eviction {
namespace {

using Scores = std::vector<double>;

// Softmax weights of one row over the cache; keys it does not see are 0.
Scores RowWeights(const LayerCaches& caches, uint32_t head, uint64_t position) {
  const uint32_t kv_head = head / caches.attention.group();
  const KeptKeys& held = caches.of_head[kv_head];
  std::vector<float> row, scratch;
  if (caches.shared != nullptr && caches.shared->logits().Holds(position)) {
    const auto positions = held.positions();
    const auto seen = std::upper_bound(positions.begin(), positions.end(), position);
    caches.shared->logits().Weigh(head, position, {positions.begin(), seen}, WeightRule::kSoftmax,
                                  row, scratch);
  } else {
    // Rows of the prompt are looked at while the cache is whole.
    KV_ASSERT(caches.shared == nullptr || held.size() == held.positions().back() + 1);
    const KeptKeys& keys = caches.shared == nullptr ? held : caches.shared->whole()[kv_head];
    RowScratch buffers;
    row.resize(keys.size());
    row.resize(RowLogits(caches.attention, head, position, keys, buffers, row.data()));
    WeighRow(row.data(), row.size(), WeightRule::kSoftmax);
  }
  Scores weights(row.begin(), row.end());
  weights.resize(held.size());
  return weights;
}

std::vector<KeepPlan> PerHead(LayerCaches& caches, uint64_t keep, uint64_t last,
                              const std::function<Scores(uint32_t kv_head)>& scores) {
  std::vector<KeepPlan> plans(caches.of_head.size());
  caches.pool.ParallelFor(plans.size(), [&](uint64_t h) {
    plans[h] = TopTokens(scores(static_cast<uint32_t>(h)), keep, last);
  });
  return plans;
}

class TovaRule : public Rule {
 public:
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t position, uint64_t keep) override {
    const uint32_t heads = caches.attention.query_heads();
    std::vector<Scores> rows(heads);
    caches.pool.ParallelFor(heads, [&](uint64_t head) {
      rows[head] = RowWeights(caches, static_cast<uint32_t>(head), position);
    });
    Scores mean(caches.size());
    for (const Scores& row : rows) {
      for (size_t j = 0; j < mean.size(); ++j) mean[j] += row[j];
    }
    return {TopTokens(mean, keep, 1)};
  }
};

// The last rows look at the keys before them. On a budget they look once: from then on the scores
// stay, and tokens that came later have none and stay too, until they alone fill the budget.
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
    caches.pool.ParallelFor(plans.size(), [&](uint64_t h) {
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

  // Mean over the kernel's neighbours among the first `count`, zeros beyond the ends counted.
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
  std::vector<Scores> scores_;  // [kv head], once they are there
};

// Keys as floats, [key][dim].
std::vector<float> FloatKeys(const LayerAttention& attention, std::span<const uint32_t> positions,
                             uint32_t kv_head) {
  const size_t dim = attention.head_dim();
  std::vector<float> out(positions.size() * dim);
  std::vector<std::byte> row(attention.key_bytes());
  for (size_t j = 0; j < positions.size(); ++j) {
    attention.GatherKeys(kv_head, positions[j], 1, row.data());
    float* to = out.data() + j * dim;
    switch (attention.key_type()) {
      case KeyType::kF16:
        HalfToFloat(row.data(), to, dim);
        break;
      case KeyType::kBF16:
        BFloatToFloat(row.data(), to, dim);
        break;
      case KeyType::kF32:
        std::copy_n(reinterpret_cast<const std::byte*>(row.data()), row.size(),
                    reinterpret_cast<std::byte*>(to));
        break;
    }
  }
  return out;
}

double Norm(const float* row, size_t dim) {
  double sum = 0;
  for (size_t i = 0; i < dim; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return std::sqrt(sum);
}

class KeyNormRule : public Rule {
 public:
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    const size_t dim = caches.attention.head_dim();
    scores_.resize(caches.of_head.size());
    std::vector<KeepPlan> plans(scores_.size());
    caches.pool.ParallelFor(plans.size(), [&](uint64_t h) {
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

// Keys of unit length and their sum, kept from eviction to eviction.
class KeyDiffRule : public Rule {
 public:
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    heads_.resize(caches.of_head.size());
    std::vector<KeepPlan> plans(heads_.size());
    caches.pool.ParallelFor(plans.size(), [&](uint64_t h) {
      const auto kv_head = static_cast<uint32_t>(h);
      heads_[h].Add(caches.attention, caches.of_head[h].positions(), kv_head);
      plans[h] = TopTokens(heads_[h].Unlikeness(), keep, 0);
      heads_[h].Compact(plans[h]);
    });
    return plans;
  }

 private:
  class Head {
   public:
    void Add(const LayerAttention& attention, std::span<const uint32_t> positions,
             uint32_t kv_head) {
      dim_ = attention.head_dim();
      anchor_.resize(dim_);
      const auto added = positions.subspan(unit_.size() / dim_);
      const std::vector<float> keys = FloatKeys(attention, added, kv_head);
      for (size_t j = 0; j < added.size(); ++j) {
        const double norm = std::max(Norm(&keys[j * dim_], dim_), 1e-12);
        for (size_t i = 0; i < dim_; ++i) {
          unit_.push_back(static_cast<double>(keys[j * dim_ + i]) / norm);
          anchor_[i] += unit_.back();
        }
      }
    }
    // The anchor's own norm is the same for all keys.
    Scores Unlikeness() const {
      Scores scores(unit_.size() / dim_);
      for (size_t j = 0; j < scores.size(); ++j) scores[j] = -Dot(&unit_[j * dim_]);
      return scores;
    }
    void Compact(const KeepPlan& kept) {
      size_t to = 0, next = 0;
      const auto drop_up_to = [&](size_t end) {
        for (; next < end; ++next) {
          for (size_t i = 0; i < dim_; ++i) anchor_[i] -= unit_[next * dim_ + i];
        }
      };
      for (const KeepRange& range : kept) {
        drop_up_to(range.begin);
        if (range.begin != to) {
          std::copy_n(unit_.begin() + static_cast<std::ptrdiff_t>(range.begin * dim_),
                      range.count * dim_, unit_.begin() + static_cast<std::ptrdiff_t>(to * dim_));
        }
        to += range.count;
        next = range.end();
      }
      drop_up_to(unit_.size() / dim_);
      unit_.resize(to * dim_);
    }

   private:
    // Four sums, so that no addition waits for the one before.
    double Dot(const double* key) const {
      double sums[4] = {};
      size_t i = 0;
      for (; i + 4 <= dim_; i += 4) {
        for (size_t lane = 0; lane < 4; ++lane) sums[lane] += key[i + lane] * anchor_[i + lane];
      }
      for (; i < dim_; ++i) sums[0] += key[i] * anchor_[i];
      return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }

    size_t dim_ = 1;
    std::vector<double> unit_;  // [key][dim]
    Scores anchor_;
  };

  std::vector<Head> heads_;
};

// Column sums of the rows after each eviction, over the whole uncompacted cache: one pass from the
// end, because they do not depend on what is kept.
class OracleRule : public Rule {
 public:
  OracleRule(const LayerAttention& attention, const LayerSchedule& schedule, ThreadPool& pool) {
    LayerCaches whole{attention, pool, nullptr, {}};
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

// The same where evictions come at every step: the future of the first one is summed up once, and
// each row that passes is taken off again. A row comes out the same both times, to the bit.
class PassingOracleRule : public Rule {
 public:
  PassingOracleRule(const LayerSchedule& schedule, const LayerCaches& caches)
      : first_(schedule.evictions.front().token + 1),
        future_(caches.attention.kv_heads(), Scores(caches.attention.end_row())) {
    LogitRows& logits = caches.shared->logits();
    scales_.resize(caches.attention.end_row() - std::min(first_, caches.attention.end_row()));
    for (uint64_t row = first_; row < caches.attention.end_row(); ++row) {
      logits.LoadTileOf(row);
      AddRow(caches, row);
    }
  }
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  void Observe(LayerCaches& caches, uint64_t begin, uint64_t end) override {
    for (uint64_t row = std::max(begin, first_); row < end; ++row) TakeOff(caches, row);
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
    caches.pool.ParallelFor(future_.size(), [&](uint64_t h) {
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
  // Of the positions that are held; the others are never asked for again.
  void TakeOff(const LayerCaches& caches, uint64_t row) {
    const uint32_t group = caches.attention.group();
    caches.pool.ParallelFor(future_.size(), [&](uint64_t h) {
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

std::unique_ptr<Rule> MakeTovaRule() { return std::make_unique<TovaRule>(); }
std::unique_ptr<Rule> MakeSnapKvRule(const PolicyOptions& options) {
  return std::make_unique<SnapKvRule>(options);
}
std::unique_ptr<Rule> MakeKeyNormRule() { return std::make_unique<KeyNormRule>(); }
std::unique_ptr<Rule> MakeKeyDiffRule() { return std::make_unique<KeyDiffRule>(); }
std::unique_ptr<Rule> MakeOracleRule(const PolicyOptions& options, const LayerSchedule& schedule,
                                     const LayerCaches& caches) {
  if (options.on_budget) return std::make_unique<PassingOracleRule>(schedule, caches);
  return std::make_unique<OracleRule>(caches.attention, schedule, caches.pool);
}

}  // namespace kv::eviction
