// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/h2o/policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/base/error.h"
#include "lib/h2o/policy_rules.h"

namespace kv::h2o {
namespace {

constexpr uint64_t kStreamingSinks = 4;  // StreamingLLM's own figure

constexpr PolicyInfo kPolicies[] = {
    {"block", "the engine's rule: sink and recent blocks, then blocks by EMA score", true},
    {"full", "nothing is evicted", false},
    {"random", "seeded choice, per kv head", false},
    {"window", "the most recent tokens", false},
    {"streaming", "4 sinks and the most recent tokens (StreamingLLM)", false},
    {"h2o", "half recent, half by attention summed since the prompt, per kv head (H2O)", true},
    {"tova", "attention of the last row, mean over all heads (TOVA)", true},
    {"snapkv", "attention of the last 64 rows, pooled over 5 keys, per kv head (SnapKV)", true},
    {"pyramid", "as snapkv, with budgets falling from the first layer to the last", true},
    {"knorm", "small key norms stay, per kv head", false},
    {"keydiff", "keys unlike the mean key stay, per kv head (KeyDiff)", false},
    {"oracle-mass", "attention of the rows to come, per kv head: an upper bound", true},
};

std::unique_ptr<Rule> MakeRule(std::string_view name, const PolicyOptions& options,
                               const LayerAttention& attention, const LayerPlace& place,
                               const LayerSchedule& schedule, ThreadPool& pool) {
  if (name == "block") return MakeBlockRule(options);
  if (name == "random") return MakeRandomRule(options);
  if (name == "window") return MakeWindowRule(0);
  if (name == "streaming") return MakeWindowRule(kStreamingSinks);
  if (name == "h2o") return MakeHeavyHitterRule(options);
  if (name == "tova") return MakeTovaRule();
  if (name == "snapkv") return MakeSnapKvRule();
  if (name == "pyramid") return MakePyramidRule(place);
  if (name == "knorm") return MakeKeyNormRule();
  if (name == "keydiff") return MakeKeyDiffRule();
  if (name == "oracle-mass") return MakeOracleRule(attention, schedule, pool);
  AssertionFailed("a rule of the table", __FILE__, __LINE__);
}

}  // namespace

std::span<const PolicyInfo> Policies() { return kPolicies; }

const PolicyInfo* FindPolicy(std::string_view name) {
  for (const PolicyInfo& policy : kPolicies) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

KeepPlan TopTokens(std::span<const double> scores, uint64_t keep, uint64_t last) {
  const uint64_t n = scores.size();
  keep = std::min(keep, n);
  last = std::min(last, keep);
  std::vector<uint32_t> order(n - last);
  std::iota(order.begin(), order.end(), 0);
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(keep - last);
  const auto better = [&](uint32_t a, uint32_t b) {
    const double x = scores[a], y = scores[b];
    if (std::isnan(x) || std::isnan(y)) {
      if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
      return a < b;
    }
    return x != y ? x > y : a < b;
  };
  std::nth_element(order.begin(), middle, order.end(), better);
  order.resize(keep - last);
  std::sort(order.begin(), order.end());
  KeepPlan plan = PlanOf(order);
  Append(plan, {static_cast<uint32_t>(n - last), static_cast<uint32_t>(last)});
  return plan;
}

void CompactScores(const KeepPlan& plan, std::vector<double>& scores) {
  size_t to = 0;
  for (const KeepRange& range : plan) {
    std::copy_n(scores.begin() + range.begin, range.count,
                scores.begin() + static_cast<std::ptrdiff_t>(to));
    to += range.count;
  }
  scores.resize(to);
}

std::vector<std::vector<double>> ColumnSums(LayerCaches& caches, uint64_t begin,
                                            std::span<const float> row_weights, WeightRule rule) {
  const LayerAttention& attention = caches.attention;
  const uint32_t heads = attention.query_heads(), group = attention.group();
  std::vector<std::vector<double>> of_query_head(heads);
  caches.pool.ParallelFor(heads, [&](uint64_t head) {
    RowScratch scratch;
    const KeptKeys& keys = caches.of_head[head / group];
    of_query_head[head].resize(keys.size());
    AddColumnSums(attention, static_cast<uint32_t>(head), begin, row_weights, rule, keys, scratch,
                  of_query_head[head].data());
  });
  std::vector<std::vector<double>> sums(attention.kv_heads());
  for (uint32_t head = 0; head < heads; ++head) {
    std::vector<double>& to = sums[head / group];
    if (head % group == 0) {
      to = std::move(of_query_head[head]);
    } else {
      for (size_t j = 0; j < to.size(); ++j) to[j] += of_query_head[head][j];
    }
  }
  return sums;
}

LayerPlan PlanLayer(const PolicyInfo& policy, const PolicyOptions& options,
                    const LayerAttention& attention, const LayerPlace& place,
                    const LayerSchedule& schedule, ThreadPool& pool) {
  LayerPlan plan;
  plan.layer = attention.layer();
  if (policy.name == "full" || schedule.evictions.empty()) return plan;
  const auto rule = MakeRule(policy.name, options, attention, place, schedule, pool);
  LayerCaches caches{attention, pool, {}};
  for (uint32_t h = 0; h < attention.kv_heads(); ++h) caches.of_head.emplace_back(attention, h);
  plan.units = rule->units(caches);
  std::vector<KeepPlan> held(plan.units);
  uint64_t next = 0;  // first position that is not in the caches yet
  const auto advance = [&](uint64_t end) {
    for (KeptKeys& keys : caches.of_head) keys.AppendUpTo(end);
    for (KeepPlan& positions : held) {
      Append(positions, {static_cast<uint32_t>(next), static_cast<uint32_t>(end - next)});
    }
    const uint64_t first = std::max(next, attention.first_row());
    const uint64_t from = rule->wants_prefill() ? first : std::max(first, place.prompt);
    if (from < end) rule->Observe(caches, from, end);
    next = end;
  };
  for (const Eviction& scheduled : schedule.evictions) {
    advance(scheduled.token + 1);
    Eviction eviction = scheduled;
    eviction.length_before = caches.size();
    // A rule with a budget of its own has another length by now: it keeps the same share.
    const uint64_t keep = eviction.length_before == scheduled.length_before
                              ? scheduled.kept
                              : eviction.length_before * scheduled.kept / scheduled.length_before;
    eviction.kept =
        std::clamp<uint64_t>(rule->Budget(keep, eviction.length_before), 1, eviction.length_before);
    const std::vector<KeepPlan> chosen = rule->Choose(caches, scheduled.token, eviction.kept);
    KV_ASSERT(chosen.size() == plan.units);
    for (uint32_t h = 0; h < caches.of_head.size(); ++h) {
      caches.of_head[h].Compact(chosen[plan.units == 1 ? 0 : h]);
    }
    KeepEvent event{eviction, {}};
    for (uint32_t unit = 0; unit < plan.units; ++unit) {
      KV_ASSERT(KeptTokens(chosen[unit]) == eviction.kept);
      held[unit] = Select(held[unit], chosen[unit]);
      event.kept.push_back(held[unit]);
    }
    plan.events.push_back(std::move(event));
  }
  return plan;
}

}  // namespace kv::h2o
