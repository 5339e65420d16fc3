// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

constexpr double kLeastNorm = 1e-12;  // guards the division for a zero key

// Keeps the keys that differ most from the mean direction of all keys. Keys of unit length and
// their sum are kept from eviction to eviction.
class KeyDiffRule : public Rule {
 public:
  uint32_t units(const LayerCaches& caches) const override { return caches.attention.kv_heads(); }
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    heads_.resize(caches.of_head.size());
    std::vector<KeepPlan> plans(heads_.size());
    caches.pool->ParallelFor(plans.size(), [&](uint64_t h) {
      const auto kv_head = static_cast<uint32_t>(h);
      heads_[h].Add(caches.attention, caches.of_head[h].positions(), kv_head);
      plans[h] = TopTokens(heads_[h].Dissimilarity(), keep, 0);
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
        const double norm = std::max(Norm(&keys[j * dim_], dim_), kLeastNorm);
        for (size_t i = 0; i < dim_; ++i) {
          unit_.push_back(static_cast<double>(keys[j * dim_ + i]) / norm);
          anchor_[i] += unit_.back();
        }
      }
    }
    // The anchor's own norm is left out, because it is the same for all keys.
    Scores Dissimilarity() const {
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
    // Four partial sums, so that no addition waits for the one before.
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

}  // namespace

std::unique_ptr<Rule> MakeKeyDiffRule(const RuleSetup&) { return std::make_unique<KeyDiffRule>(); }

}  // namespace kv::eviction
