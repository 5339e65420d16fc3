// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/plan_layer.h"

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

// The caches of a rule that has seen nothing yet.
LayerCaches EmptyCaches(const LayerAttention& attention, SharedRows* shared, ThreadPool& pool) {
  LayerCaches caches{attention, &pool, shared, {}};
  for (uint32_t h = 0; h < attention.kv_heads(); ++h) {
    caches.of_head.emplace_back(attention, h, shared == nullptr);
  }
  return caches;
}

// One rule on its way through the rows of a layer.
class Walk {
 public:
  Walk(const PlanJob& job, const LayerAttention& attention, uint64_t prompt, SharedRows* shared,
       ThreadPool& pool)
      : evictions_(job.schedule->evictions),
        prompt_(prompt),
        caches_(EmptyCaches(attention, shared, pool)) {
    plan_.layer = attention.layer();
    if (evictions_.empty()) return;
    rule_ = job.policy->make({*job.options, *job.schedule, caches_});
    plan_.units = rule_->units(caches_);
  }

  // Evicts whatever goes before the row at `end`.
  void AdvanceTo(uint64_t end, ThreadPool& pool) {
    caches_.pool = &pool;
    for (; done_ < evictions_.size() && evictions_[done_].token < end; ++done_) {
      Evict(evictions_[done_]);
    }
    if (done_ < evictions_.size()) Append(end);
  }

  LayerPlan Take() { return std::move(plan_); }

 private:
  void Append(uint64_t end) {
    if (end <= next_) return;
    for (KeptKeys& keys : caches_.of_head) keys.AppendUpTo(end);
    const uint64_t first = std::max(next_, caches_.attention.first_row());
    const uint64_t from = rule_->wants_prefill() ? first : std::max(first, prompt_);
    if (from < end) rule_->Observe(caches_, from, end);
    next_ = end;
  }

  void Evict(const Eviction& eviction) {
    Append(eviction.token + 1);
    KV_ASSERT(eviction.length_before == caches_.size());
    const std::vector<KeepPlan> chosen = rule_->Choose(caches_, eviction.token, eviction.kept);
    KV_ASSERT(chosen.size() == plan_.units);
    for (uint32_t unit = 0; unit < plan_.units; ++unit) {
      KV_ASSERT(KeptTokens(chosen[unit]) == eviction.kept);
      NoteDropped(unit, chosen[unit], eviction.token);
    }
    for (uint32_t h = 0; h < caches_.of_head.size(); ++h) {
      caches_.of_head[h].Compact(chosen[plan_.units == 1 ? 0 : h]);
    }
    plan_.events.push_back(eviction);
  }

  void NoteDropped(uint32_t unit, const KeepPlan& chosen, uint64_t token) {
    const auto positions = caches_.of_head[unit].positions();
    size_t next = 0;
    const auto drop_up_to = [&](size_t end) {
      for (; next < end; ++next) plan_.Drop(unit, positions[next], token);
    };
    for (const KeepRange& range : chosen) {
      drop_up_to(range.begin);
      next = range.end();
    }
    drop_up_to(positions.size());
  }

  std::span<const Eviction> evictions_;
  uint64_t prompt_;
  LayerCaches caches_;
  std::unique_ptr<Rule> rule_;
  LayerPlan plan_;
  size_t done_ = 0;
  uint64_t next_ = 0;  // first position that is not in the caches yet
};

}  // namespace

std::vector<LayerPlan> PlanLayer(const LayerAttention& attention, uint64_t prompt,
                                 std::span<const PlanJob> jobs, ThreadPool& pool) {
  std::vector<LayerPlan> plans(jobs.size());
  std::unique_ptr<SharedRows> shared;
  std::vector<std::pair<size_t, Walk>> together;
  uint64_t next = UINT64_MAX, end = 0;  // rows whose logits are looked at one by one
  for (size_t i = 0; i < jobs.size(); ++i) {
    const PlanJob& job = jobs[i];
    if (!job.options->on_budget) {
      Walk alone(job, attention, prompt, nullptr, pool);
      alone.AdvanceTo(attention.end_row(), pool);
      plans[i] = alone.Take();
      continue;
    }
    if (shared == nullptr) shared = std::make_unique<SharedRows>(attention, pool);
    together.emplace_back(i, Walk(job, attention, prompt, shared.get(), pool));
    if (!job.policy->needs_rows || job.schedule->evictions.empty()) continue;
    next = std::min(next, job.schedule->evictions.front().token);
    end = std::max(end, job.schedule->evictions.back().token + 1);
  }
  // Many rules run side by side; few share the threads, head by head. So do all of them in the
  // first tile, where sums over the whole prompt are made that the others only look up.
  ThreadPool inline_pool(1);
  const bool many = together.size() >= static_cast<size_t>(pool.threads());
  const auto advance = [&](uint64_t to, bool side_by_side) {
    if (!side_by_side) {
      for (auto& [job, walk] : together) walk.AdvanceTo(to, pool);
      return;
    }
    pool.ParallelFor(together.size(),
                     [&](uint64_t i) { together[i].second.AdvanceTo(to, inline_pool); });
  };
  for (bool first = true; next < end; first = false) {
    next = shared->logits().LoadTileOf(next);
    advance(next, many && !first);
  }
  advance(attention.end_row(), many);
  for (auto& [job, walk] : together) plans[job] = walk.Take();
  return plans;
}

}  // namespace kv::eviction
