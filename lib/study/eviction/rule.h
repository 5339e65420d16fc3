// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/study/eviction/logit_rows.h"
#include "lib/study/eviction/policy.h"
#include "lib/study/eviction/top_tokens.h"

namespace kv::eviction {

// Sums of attention weights over query rows: [kv head][key].
using HeadSums = std::vector<std::vector<double>>;

// Which rows were summed: those from `begin` on, one for each weight.
struct SummedRows {
  uint64_t begin = 0;
  std::vector<float> weights;
  WeightRule rule = WeightRule::kSoftmax;

  bool operator==(const SummedRows&) const = default;
};

// What all rules on a budget share: the layer's whole keys, the logits of some rows over them, and
// sums over the rows of the prompt, which most of these rules begin with.
class SharedRows {
 public:
  SharedRows(const LayerAttention& attention, ThreadPool& pool);
  SharedRows(const SharedRows&) = delete;
  SharedRows& operator=(const SharedRows&) = delete;

  std::span<const KeptKeys> whole() const { return whole_; }  // [kv head]
  LogitRows& logits() { return logits_; }
  // Returns what `sum` makes of these rows over the whole cache; makes it once. Any thread may ask.
  HeadSums SumsOf(SummedRows rows, const std::function<HeadSums()>& sum);

 private:
  static std::vector<KeptKeys> WholeCache(const LayerAttention& attention);

  std::vector<KeptKeys> whole_;
  LogitRows logits_;
  std::mutex mutex_;
  std::vector<std::pair<SummedRows, HeadSums>> sums_;  // the latest, in a circle
  size_t oldest_ = 0;
};

// The caches of one layer while a rule is replayed: one per kv head, all of the same length. If
// rows are shared, the caches hold positions only.
struct LayerCaches {
  const LayerAttention& attention;
  ThreadPool* pool;  // which may change from call to call
  SharedRows* shared;
  std::vector<KeptKeys> of_head;

  uint64_t size() const { return of_head.front().size(); }
};

// One rule at work on one layer. Observe() sees each stretch of query rows between two evictions,
// all of which attend to the caches as they are; Choose() then picks the tokens that stay.
class Rule {
 public:
  virtual ~Rule() = default;
  // How many plans Choose() makes: one for all kv heads, or one for each.
  virtual uint32_t units(const LayerCaches&) const { return 1; }
  // Rows [begin, end) are those of the last keys in the caches.
  virtual void Observe(LayerCaches&, uint64_t /*begin*/, uint64_t /*end*/) {}
  // Returns one plan per unit: `keep` tokens as indices into the caches. `position` is that of the
  // current token.
  virtual std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t position, uint64_t keep) = 0;
  // Whether Observe() is to see the rows of the prefill, too.
  virtual bool wants_prefill() const { return false; }
};

// What a rule may look at when it is made, before the first row.
struct RuleSetup {
  const PolicyOptions& options;
  const LayerSchedule& schedule;
  const LayerCaches& caches;
};

}  // namespace kv::eviction
