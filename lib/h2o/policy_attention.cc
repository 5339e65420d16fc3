// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Rules that look at rows around the decision, or at the keys themselves.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/base/error.h"
#include "lib/h2o/policy_rules.h"
#include "lib/kernels/convert.h"

namespace kv::h2o {
namespace {

constexpr uint64_t kSnapWindow = 64;
constexpr int64_t kSnapKernel = 5;
constexpr uint64_t kPyramidBeta = 20;

using Scores = std::vector<double>;

// Softmax weights of one row over the cache; keys it does not see are 0.
Scores RowWeights(const LayerCaches& caches, uint32_t head, uint64_t position) {
  const KeptKeys& keys = caches.of_head[head / caches.attention.group()];
  RowScratch scratch;
  std::vector<float> row(keys.size());
  const size_t seen = RowLogits(caches.attention, head, position, keys, scratch, row.data());
  WeighRow(row.data(), seen, WeightRule::kSoftmax);
  return Scores(row.begin(), row.end());
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

class SnapKvRule : public Rule {
 public:
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }

  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t position, uint64_t keep) override {
    const uint64_t rows = position + 1 - caches.attention.first_row();
    const uint64_t window = std::min({kSnapWindow, keep, rows, caches.size()});
    return PerHead(caches, keep, window, [&](uint32_t h) {
      Scores sums(caches.size());
      const uint32_t group = caches.attention.group();
      for (uint32_t head = h * group; head < (h + 1) * group; ++head) {
        for (uint64_t row = position + 1 - window; row <= position; ++row) {
          const Scores weights = RowWeights(caches, head, row);
          for (size_t j = 0; j < sums.size(); ++j) sums[j] += weights[j];
        }
      }
      return Pooled(sums, sums.size() - window);
    });
  }

 private:
  // Mean over 5 neighbours among the first `count`, zeros beyond the ends counted.
  static Scores Pooled(const Scores& sums, size_t count) {
    Scores pooled(sums.size());
    for (int64_t j = 0; j < static_cast<int64_t>(count); ++j) {
      const int64_t from = std::max<int64_t>(0, j - kSnapKernel / 2);
      const int64_t to = std::min<int64_t>(static_cast<int64_t>(count), j + kSnapKernel / 2 + 1);
      double sum = 0;
      for (int64_t i = from; i < to; ++i) sum += sums[static_cast<size_t>(i)];
      pooled[static_cast<size_t>(j)] = sum / static_cast<double>(kSnapKernel);
    }
    return pooled;
  }
};

// Budgets fall linearly over the layers that evict; their mean is the common budget.
class PyramidRule : public SnapKvRule {
 public:
  explicit PyramidRule(const LayerPlace& place) : place_(place) {}

  uint64_t Budget(uint64_t keep, uint64_t length) const override {
    const uint64_t window = std::min(kSnapWindow, length);
    uint64_t least = keep / kPyramidBeta, most = 2 * keep - least;
    if (most >= length - window) {
      most = length - window;
      least = 2 * keep >= most ? 2 * keep - most : 0;
    }
    if (!(length >= most && most >= least && least >= window)) return keep;
    if (place_.count < 2) return keep;
    const double step = static_cast<double>(most - least) / (place_.count - 1);
    return static_cast<uint64_t>(std::nearbyint(static_cast<double>(most) - step * place_.index));
  }

 private:
  LayerPlace place_;
};

// Keys of one cache as floats, [key][dim].
std::vector<float> FloatKeys(const LayerAttention& attention, const KeptKeys& keys,
                             uint32_t kv_head) {
  const size_t dim = attention.head_dim();
  std::vector<float> out(keys.size() * dim);
  std::vector<std::byte> row(attention.key_bytes());
  const auto positions = keys.positions();
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
    return PerHead(caches, keep, 0, [&](uint32_t h) {
      const size_t dim = caches.attention.head_dim();
      const std::vector<float> keys = FloatKeys(caches.attention, caches.of_head[h], h);
      Scores scores(caches.size());
      for (size_t j = 0; j < scores.size(); ++j) scores[j] = -Norm(&keys[j * dim], dim);
      return scores;
    });
  }
};

class KeyDiffRule : public Rule {
 public:
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    return PerHead(caches, keep, 0, [&](uint32_t h) {
      const size_t dim = caches.attention.head_dim();
      const std::vector<float> keys = FloatKeys(caches.attention, caches.of_head[h], h);
      Scores scores(caches.size()), anchor(dim);
      for (size_t j = 0; j < scores.size(); ++j) {
        const double norm = std::max(Norm(&keys[j * dim], dim), 1e-12);
        for (size_t i = 0; i < dim; ++i) anchor[i] += static_cast<double>(keys[j * dim + i]) / norm;
      }
      for (size_t j = 0; j < scores.size(); ++j) {
        const double norm = std::max(Norm(&keys[j * dim], dim), 1e-12);
        double dot = 0;
        for (size_t i = 0; i < dim; ++i) dot += static_cast<double>(keys[j * dim + i]) * anchor[i];
        scores[j] = -dot / norm;  // the anchor's own norm is the same for all keys
      }
      return scores;
    });
  }
};

// Column sums of the rows after each eviction, over the whole uncompacted cache: one pass from the
// end, because they do not depend on what is kept.
class OracleRule : public Rule {
 public:
  OracleRule(const LayerAttention& attention, const LayerSchedule& schedule, ThreadPool& pool) {
    LayerCaches whole{attention, pool, {}};
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

}  // namespace

std::unique_ptr<Rule> MakeTovaRule() { return std::make_unique<TovaRule>(); }
std::unique_ptr<Rule> MakeSnapKvRule() { return std::make_unique<SnapKvRule>(); }
std::unique_ptr<Rule> MakePyramidRule(const LayerPlace& place) {
  return std::make_unique<PyramidRule>(place);
}
std::unique_ptr<Rule> MakeKeyNormRule() { return std::make_unique<KeyNormRule>(); }
std::unique_ptr<Rule> MakeKeyDiffRule() { return std::make_unique<KeyDiffRule>(); }
std::unique_ptr<Rule> MakeOracleRule(const LayerAttention& attention, const LayerSchedule& schedule,
                                     ThreadPool& pool) {
  return std::make_unique<OracleRule>(attention, schedule, pool);
}

}  // namespace kv::h2o
