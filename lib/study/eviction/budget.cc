// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Schedules on a budget: how many tokens each layer keeps after each step, and how pyramid and
// block turn a budget into a number of tokens.
#include "lib/study/eviction/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"

namespace kv::eviction {

uint64_t LayerSchedule::evictions_in_effect(uint64_t end) const {
  return static_cast<uint64_t>(
      std::count_if(evictions.begin(), evictions.end(), [&](const Eviction& eviction) {
        return eviction.kept < eviction.length_before && eviction.token + 1 < end;
      }));
}

uint64_t LengthWalk::At(uint64_t position) {
  const std::vector<Eviction>& all = schedule_.evictions;
  const uint64_t before = position + (schedule_.within_step ? 1 : 0);
  while (next_ < all.size() && all[next_].token < before) ++next_;
  if (next_ == 0) return position + 1;
  return all[next_ - 1].kept + (position - all[next_ - 1].token);
}

uint32_t LayerPlan::last_seen(uint32_t unit, uint64_t position) const {
  if (unit >= last_seen_.size() || position >= last_seen_[unit].size()) return kStays;
  return last_seen_[unit][position];
}

void LayerPlan::Drop(uint32_t unit, uint64_t position, uint64_t token) {
  if (last_seen_.size() < units) last_seen_.resize(units);
  std::vector<uint32_t>& of_unit = last_seen_[unit];
  if (of_unit.size() <= position) of_unit.resize(position + 1, kStays);
  if (of_unit[position] == kStays) of_unit[position] = static_cast<uint32_t>(token);
}

void LayerPlan::Keep(const Eviction& event, std::span<const KeepPlan> held) {
  KV_ASSERT(held.size() == units);
  for (uint32_t unit = 0; unit < units; ++unit) {
    uint64_t next = 0;
    const auto drop_up_to = [&](uint64_t end) {
      for (; next < end; ++next) Drop(unit, next, event.token);
    };
    for (const KeepRange& range : held[unit]) {
      drop_up_to(range.begin);
      next = range.end();
    }
    drop_up_to(event.token + 1);
  }
  events.push_back(event);
}

KeepPlan LayerPlan::HeldBefore(uint32_t unit, uint64_t position) const {
  KeepPlan held;
  if (unit >= last_seen_.size()) {
    Append(held, {0, static_cast<uint32_t>(position)});
    return held;
  }
  const std::vector<uint32_t>& of_unit = last_seen_[unit];
  const uint64_t known = std::min<uint64_t>(position, of_unit.size());
  for (uint64_t p = 0; p < known; ++p) {
    if (of_unit[p] >= position) Append(held, {static_cast<uint32_t>(p), 1});
  }
  Append(held, {static_cast<uint32_t>(known), static_cast<uint32_t>(position - known)});
  return held;
}

namespace {

// A product this close to a whole number counts as whole: 0.29 * 100 is 28.999999999999996.
constexpr double kWhole = 1e-9;

// Parameters of "block" for a budget, unless the user chose them: the budget is this many blocks,
// and recent tokens and sinks get these parts of it.
constexpr int64_t kBlocksInBudget = 8, kRecentDivisor = 4, kSinkDivisor = 16;

struct Slope {
  double most = 0, least = 0;  // budgets of the first and the last layer
};

// Returns the paper's budgets of the first and last layer, cut where the first layer would keep its
// whole cache. Returns nothing if they do not fall, or if the last layer could not hold the window.
std::optional<Slope> ComputeSlope(double keep, double least, uint64_t length, uint64_t window) {
  const auto tokens = static_cast<double>(length), last = static_cast<double>(window);
  Slope slope{2 * keep - least, least};
  if (slope.most >= tokens - last) {
    slope.most = tokens - last;
    slope.least = 2 * keep - slope.most;
  }
  if (tokens >= slope.most && slope.most >= slope.least && slope.least >= last) return slope;
  return std::nullopt;
}

double OnSlope(const Slope& slope, uint32_t index, uint32_t count) {
  return std::nearbyint(slope.most - (slope.most - slope.least) / (count - 1) * index);
}

// Returns the first step at which the budget is less than the tokens seen.
uint64_t FirstShort(const KeepBudget& budget, const BudgetSteps& steps) {
  uint64_t token = steps.From(steps.first);
  while (token < steps.end && budget.At(token + 1) > token) token = steps.From(token + 1);
  return token;
}

// `offset` is the layer's budget minus the common one.
void HoldTokens(const KeepBudget& budget, const BudgetSteps& steps, int64_t offset,
                LayerSchedule& schedule) {
  uint64_t length = 0, next = 0;
  for (uint64_t token = steps.first; token < steps.end; token = steps.From(token + 1)) {
    length += token + 1 - next;
    next = token + 1;
    ++schedule.triggers;
    const int64_t wanted = static_cast<int64_t>(budget.At(token + 1)) + offset;
    const auto keep = std::clamp<int64_t>(wanted, 1, static_cast<int64_t>(length));
    if (static_cast<uint64_t>(keep) == length) continue;
    schedule.evictions.push_back({token, length, static_cast<uint64_t>(keep)});
    length = static_cast<uint64_t>(keep);
  }
}

void HoldBlocks(const BlockConfig& config, const KeepBudget& budget, const BudgetSteps& steps,
                LayerSchedule& schedule) {
  uint64_t length = 0, next = 0;
  for (uint64_t token = steps.first; token < steps.end; token = steps.From(token + 1)) {
    length += token + 1 - next;
    next = token + 1;
    ++schedule.triggers;
    const uint64_t wanted = std::min(length, budget.At(token + 1));
    const BlockBudget here = ComputeBlockBudget(config, length, wanted);
    schedule.floor_dominated += here.floor > wanted;
    if (here.quantised >= length) continue;
    schedule.evictions.push_back({token, length, here.quantised});
    length = here.quantised;
  }
}

}  // namespace

uint64_t KeepBudget::At(uint64_t seen) const {
  if (tokens) return std::clamp<uint64_t>(*tokens, 1, std::max<uint64_t>(1, seen));
  const double product = share * static_cast<double>(seen);
  const double near = std::nearbyint(product);
  const double whole =
      std::abs(product - near) <= kWhole * std::max(1.0, near) ? near : std::floor(product);
  return std::clamp<uint64_t>(static_cast<uint64_t>(whole), 1, std::max<uint64_t>(1, seen));
}

std::string KeepBudget::Text() const {
  if (tokens) return fmt::format("{}t", *tokens);
  return as_ratio ? fmt::format("{:.4g}x", 1 / share) : fmt::format("{:.4g}", share);
}

std::optional<uint64_t> PyramidBudget(const PaperParameters& paper, const LayerPlace& place,
                                      uint64_t keep, uint64_t length) {
  if (place.count < 2) return std::nullopt;
  const auto mean = static_cast<double>(keep);
  const double least = mean / static_cast<double>(paper.pyramid_beta);
  const auto slope = ComputeSlope(mean, least, length, std::min(paper.window, length));
  if (!slope) return std::nullopt;
  // Opposite layers add up to twice the mean, whichever way a half is rounded.
  const uint32_t mirror = place.count - 1 - place.index;
  if (place.index == mirror) return keep;
  const auto upper =
      static_cast<uint64_t>(OnSlope(*slope, std::min(place.index, mirror), place.count));
  return place.index < mirror ? upper : 2 * keep - upper;
}

uint64_t BlockFloor(const BlockConfig& config) {
  return RoundUp(static_cast<uint64_t>(config.sink_tokens),
                 static_cast<uint64_t>(config.block_tokens)) +
         static_cast<uint64_t>(config.recent_tokens);
}

uint64_t FirstEviction(const BlockConfig& config, uint64_t first_row, uint64_t prompt) {
  const uint64_t last_of_prompt = prompt == 0 ? 0 : prompt - 1;
  return std::max(
      {last_of_prompt, first_row, static_cast<uint64_t>(config.trigger_min_tokens) - 1});
}

BlockConfig FollowTrace(const BlockConfig& config, const std::set<std::string, std::less<>>& chosen,
                        uint64_t least, std::vector<std::string>& followed) {
  BlockConfig c = Sanitised(config);
  const auto follow = [&](const char* name, int64_t& parameter, int64_t value) {
    if (chosen.contains(name)) return;
    parameter = value;
    followed.emplace_back(name);
  };
  const auto tokens = static_cast<int64_t>(std::min<uint64_t>(least, INT32_MAX));
  // the engine's parameters are for long caches and serve as upper bounds
  const BlockConfig engine;
  follow("layer_start", c.layer_start, 0);
  follow("trigger_min_tokens", c.trigger_min_tokens, 1);
  int64_t block = 1;
  while (2 * block <= std::min(tokens / kBlocksInBudget, engine.block_tokens)) block *= 2;
  follow("block_tokens", c.block_tokens, block);
  // Sinks are kept only if whole blocks of them leave room for the recent tokens.
  const auto sink_blocks = [&](int64_t sink) {
    return CeilDiv(static_cast<uint64_t>(sink), static_cast<uint64_t>(c.block_tokens)) *
           static_cast<uint64_t>(c.block_tokens);
  };
  const int64_t recent = std::min(engine.recent_tokens, tokens / kRecentDivisor);
  const int64_t wanted_recent = chosen.contains("recent_tokens") ? c.recent_tokens : recent;
  const int64_t sink = std::min(engine.sink_tokens, tokens / kSinkDivisor);
  const bool room = sink_blocks(sink) + static_cast<uint64_t>(wanted_recent) <= least;
  follow("sink_tokens", c.sink_tokens, room ? sink : 0);
  const uint64_t sinks = sink_blocks(c.sink_tokens);
  follow("recent_tokens", c.recent_tokens,
         std::min(recent, static_cast<int64_t>(least - std::min(least, sinks))));
  return c;
}

void RequireFloor(const PolicyInfo& policy, const BlockConfig& config, const PaperParameters& paper,
                  const KeepBudget& budget, uint64_t end) {
  const uint64_t most = budget.At(end);
  if (most >= end) return;
  const std::string asked =
      fmt::format("{} {}", budget.as_ratio ? "--target-ratio" : "--budget", budget.Text());
  if (policy.tuned_by == Tuning::kBlocks && BlockFloor(config) > most) {
    throw Error(Finding::kUsage,
                "{}: {} tokens of {}, but policy block always keeps {}: --sink {} in "
                "blocks of {} and --recent {}",
                asked, most, end, BlockFloor(config), config.sink_tokens, config.block_tokens,
                config.recent_tokens)
        .Hint("without --sink and --recent they follow the budget");
  }
  if (policy.tuned_by == Tuning::kSinks && paper.sinks > most) {
    throw Error(Finding::kUsage,
                "{}: {} tokens of {}, but policy streaming always keeps {} sinks "
                "(--streaming-sink)",
                asked, most, end, paper.sinks);
  }
}

LayerSchedule BudgetSchedule(const PolicyInfo& policy, const PolicyOptions& options,
                             const KeepBudget& budget, const BudgetSteps& steps,
                             const LayerPlace& place) {
  LayerSchedule schedule;
  schedule.in_range = place.in_range;
  schedule.within_step = true;
  if (!place.in_range || policy.spending == Spending::kNone) return schedule;
  // In the papers a prompt within its budget stays whole, however long the cache grows.
  const bool once = policy.at_prompt_end && options.paper.grow;
  const BudgetSteps from = once ? BudgetSteps{steps.first, std::min(steps.first + 1, steps.end)}
                                : BudgetSteps{FirstShort(budget, steps), steps.end, steps.stride};
  if (policy.spending == Spending::kWholeBlocks) {
    HoldBlocks(options.config, budget, from, schedule);
  } else {
    int64_t offset = 0;
    if (policy.spending == Spending::kPyramid && from.first < from.end) {
      const uint64_t keep = budget.At(from.first + 1);
      const auto own = PyramidBudget(options.paper, place, keep, from.first + 1);
      if (own) offset = static_cast<int64_t>(*own) - static_cast<int64_t>(keep);
    }
    HoldTokens(budget, from, offset, schedule);
  }
  // An eviction after the last row does not count, because no later query lacks its tokens.
  if (!schedule.evictions.empty() && schedule.evictions.front().token + 1 >= steps.end) {
    schedule.evictions.clear();
  }
  return schedule;
}

LayerSchedule CommonSchedule(const PolicyInfo& policy, const PolicyOptions& options,
                             const LayerPlace& place, const LayerSchedule& common) {
  LayerSchedule own = common;
  if (policy.spending == Spending::kNone) own.Clear();
  if (policy.spending != Spending::kPyramid) return own;
  uint64_t length = 0, next = 0;
  for (Eviction& eviction : own.evictions) {
    // A layer with its own budget has another length by now; it keeps the same share.
    const Eviction scheduled = eviction;
    length += scheduled.token + 1 - next;
    next = scheduled.token + 1;
    eviction.length_before = length;
    const uint64_t keep = length == scheduled.length_before
                              ? scheduled.kept
                              : length * scheduled.kept / scheduled.length_before;
    uint64_t share = keep;
    const uint64_t window = std::min(options.paper.window, length);
    const auto least = static_cast<double>(keep / options.paper.pyramid_beta);
    if (place.count >= 2) {
      if (const auto slope = ComputeSlope(static_cast<double>(keep), least, length, window)) {
        share = static_cast<uint64_t>(OnSlope(*slope, place.index, place.count));
      }
    }
    eviction.kept = length = std::clamp<uint64_t>(share, 1, length);
  }
  return own;
}

}  // namespace kv::eviction
