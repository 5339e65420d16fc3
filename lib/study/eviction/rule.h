// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The interface of eviction rules, and the caches and shared sums that they work on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/select.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/budget.h"

namespace kv::eviction {

// Performs one step of splitmix64: a number that looks random and depends on `x` alone.
inline uint64_t SplitMix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

using Scores = std::vector<double>;

// Returns `keep` tokens: always the last `last` ones, and those with the highest scores among the
// others. Of equal scores the lower index stays; NaN is evicted first.
KeepPlan TopTokens(std::span<const double> scores, uint64_t keep, uint64_t last);

// Moves the scores of kept tokens to the places that the tokens have in the compacted cache.
void CompactScores(const KeepPlan& plan, Scores& scores);

// The maximum and the factor of one softmax. With them parts of the row can be weighted later, with
// the same bits.
struct SoftmaxScale {
  float maximum = 0;
  float factor = 0;  // 0 if the row is empty or a weight is not finite
};
// Turns logits into weights, in place.
SoftmaxScale Softmax(std::span<float> row, std::vector<float>& scratch);
void WeighAs(const SoftmaxScale& scale, std::span<float> part);

// Holds the logits of consecutive rows over the whole, unevicted cache, for all query heads. The
// weights of a row over any subset of the keys are a softmax over some of its logits. Rules that
// evict at every step therefore need no compacted keys of their own, and all rules share one
// product.
class LogitRows {
 public:
  // `whole` must hold the keys of every kv head, at least up to the last row. Only every stride-th
  // row is computed, counted from the last one.
  LogitRows(const LayerAttention& attention, std::span<const KeptKeys> whole, ThreadPool& pool,
            uint64_t stride);

  uint64_t stride() const { return stride_; }
  // Returns the first computed row at or after `position`.
  uint64_t From(uint64_t position) const {
    return position + (attention_.end_row() - 1 - position) % stride_;
  }
  // Computes the tile of the row at `position`, and returns the position after the tile. The bounds
  // of tiles do not depend on the request, so a row has the same bits every time.
  uint64_t LoadTileAt(uint64_t position);
  bool Holds(uint64_t position) const {
    return begin_ <= position && position < end_ && From(position) == position;
  }
  // Returns the position + 1 logits of the row at `position`, which must be loaded.
  const float* Row(uint32_t head, uint64_t position) const;
  // Pick the logits of the keys at `positions`, which ascend and do not exceed `position`. Weigh
  // turns them into weights.
  void Pick(uint32_t head, uint64_t position, std::span<const uint32_t> positions,
            std::vector<float>& logits) const;
  void Weigh(uint32_t head, uint64_t position, std::span<const uint32_t> positions, WeightRule rule,
             std::vector<float>& weights, std::vector<float>& scratch) const;

 private:
  void LoadHead(uint32_t head);

  const LayerAttention& attention_;
  std::span<const KeptKeys> whole_;
  ThreadPool& pool_;
  uint64_t stride_;
  uint64_t tile_rows_ = 1;
  // The tile has rows of [begin_, end_), `row_floats_` apart.
  uint64_t begin_ = 0, end_ = 0, row_floats_ = 0;
  std::vector<std::vector<float>> of_head_;  // [query head][row][key]
};

// Sums of attention weights over query rows: [kv head][key].
using HeadSums = std::vector<std::vector<double>>;

// The rows that were summed: those from `begin` on, one for each weight.
struct SummedRows {
  uint64_t begin = 0;
  std::vector<float> weights;
  WeightRule rule = WeightRule::kSoftmax;

  bool operator==(const SummedRows&) const = default;
};

// Data that all rules on a budget share: the layer's whole keys, the logits of some rows over them,
// and sums over the rows of the prompt, which most of these rules begin with.
class SharedRows {
 public:
  SharedRows(const LayerAttention& attention, ThreadPool& pool, uint64_t stride);
  SharedRows(const SharedRows&) = delete;
  SharedRows& operator=(const SharedRows&) = delete;

  std::span<const KeptKeys> whole() const { return whole_; }  // [kv head]
  LogitRows& logits() { return logits_; }
  // Returns `sum()` of these rows over the whole cache, computed once and then remembered.
  // Thread-safe.
  HeadSums FindSums(SummedRows rows, const std::function<HeadSums()>& sum);

 private:
  static std::vector<KeptKeys> WholeCache(const LayerAttention& attention);

  std::vector<KeptKeys> whole_;
  LogitRows logits_;
  std::mutex mutex_;
  std::vector<std::pair<SummedRows, HeadSums>> sums_;  // ring buffer of the latest sums
  size_t oldest_ = 0;
};

// The caches of one layer while a rule is replayed: one per kv head, all of the same length. If
// rows are shared, the caches hold positions only.
struct LayerCaches {
  const LayerAttention& attention;
  ThreadPool* pool;  // may be another pool in each call
  SharedRows* shared;
  std::vector<KeptKeys> of_head;

  uint64_t size() const { return of_head.front().size(); }
};

// One rule at work on one layer. Observe() sees each stretch of query rows between two evictions,
// all of which attend to the caches as they are; Choose() then picks the tokens to keep.
class Rule {
 public:
  virtual ~Rule() = default;
  // Returns how many plans Choose() makes: one for all kv heads, or one for each.
  virtual uint32_t units(const LayerCaches&) const { return 1; }
  // Rows [begin, end) belong to the last keys in the caches.
  virtual void Observe(LayerCaches&, uint64_t /*begin*/, uint64_t /*end*/) {}
  // Returns one plan per unit: `keep` tokens as indices into the caches. `position` is that of the
  // current token.
  virtual std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t position, uint64_t keep) = 0;
  // Returns true if Observe() also needs the rows of the prefill.
  virtual bool wants_prefill() const { return false; }
};

// Data available to a rule when it is made, before the first row.
struct RuleSetup {
  const PolicyOptions& options;
  const LayerSchedule& schedule;
  const LayerCaches& caches;
};

// Returns keys as floats, [key][dim].
std::vector<float> FloatKeys(const LayerAttention& attention, std::span<const uint32_t> positions,
                             uint32_t kv_head);

double Norm(const float* row, size_t dim);

// Returns [kv head][key]: the weights of rows [begin, begin + row_weights.size()), each row times
// its `row_weights`, summed. Where shared rows have a stride, a row stands for those up to it, with
// the sum of their weights. Query heads run on several threads and are added in head order.
HeadSums ColumnSums(LayerCaches& caches, uint64_t begin, std::span<const float> row_weights,
                    WeightRule rule);

// Returns the softmax weights of one row over the cache; keys that it does not see have 0.
Scores RowWeights(const LayerCaches& caches, uint32_t head, uint64_t position);

// A policy over one layer, and the schedule that it follows.
struct PlanJob {
  const PolicyInfo* policy = nullptr;
  const PolicyOptions* options = nullptr;
  const LayerSchedule* schedule = nullptr;
};

// Replays policies over one layer. At each eviction a policy keeps as many tokens as its schedule
// says. On a budget, rules see only every stride-th row, counted from the last one; the schedules
// must evict at no others. Returns plans in the order of the jobs, the same for any number of
// threads.
std::vector<LayerPlan> PlanLayer(const LayerAttention& attention, uint64_t prompt,
                                 std::span<const PlanJob> jobs, ThreadPool& pool,
                                 uint64_t stride = 1);

}  // namespace kv::eviction
