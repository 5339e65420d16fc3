// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/runtime/schedule.h"

#include <algorithm>

namespace kv::mnn::runtime {
namespace {

constexpr uint64_t kProbeBootstrapTokens = 32;

bool IsDue(int64_t interval, uint64_t token_step) {
  return interval <= 1 || (token_step - 1) % static_cast<uint64_t>(interval) == 0;
}

uint64_t GroupedStep(const Config& c) {
  if (c.mode != Mode::kStore) return static_cast<uint64_t>(c.block_tokens);
  const int64_t step =
      c.store_grouped_step_tokens > 0 ? c.store_grouped_step_tokens : 3 * c.block_tokens;
  return static_cast<uint64_t>(step);
}

uint64_t BootstrapTokens(const Config& c) {
  const auto block = static_cast<uint64_t>(c.block_tokens);
  if (c.mode == Mode::kProbe) return std::min(block, kProbeBootstrapTokens);
  if (c.mode == Mode::kFull) return block;
  if (c.store_bootstrap_tokens > 0) return static_cast<uint64_t>(c.store_bootstrap_tokens);
  return std::max<uint64_t>(16, block / 2);
}

bool IsSampledLayer(const Config& c, const LayerCall& call) {
  return c.kept_sample_layers == 0 ||
         call.layer - call.h2o_range.first < static_cast<uint64_t>(c.kept_sample_layers);
}

}  // namespace

std::optional<uint64_t> TokenBudget(const Config& c, const LayerCall& call) {
  const bool front = call.layer < static_cast<uint64_t>(c.front_n);
  const bool kept = call.h2o_range.Contains(call.layer);
  const bool both = c.scope == Scope::kFrontNAndH2oKept;
  const bool applies = (c.scope == Scope::kFrontN && front) ||
                       (c.scope == Scope::kH2oKept && kept) || (both && (front || kept));
  if (!applies) return std::nullopt;
  uint64_t budget =
      c.scope == Scope::kFrontN || (both && front) ? call.length : call.final_keep_tokens;
  if (c.mode == Mode::kStore && c.store_disable_front && front) {
    if (c.scope == Scope::kFrontN || (both && !kept)) return std::nullopt;
    budget = call.final_keep_tokens;
  }
  if (c.mode != Mode::kProbe && front && !IsDue(c.front_sample_token_interval, call.token_step)) {
    return std::nullopt;
  }
  const bool samples_kept = kept && (c.scope == Scope::kH2oKept || (both && !front));
  if (c.mode == Mode::kFull && samples_kept &&
      !(IsSampledLayer(c, call) && IsDue(c.kept_sample_token_interval, call.token_step))) {
    return std::nullopt;
  }
  if (c.mode == Mode::kProbe) {
    const bool first_front = c.scope != Scope::kH2oKept && call.layer == 0;
    const bool first_kept = c.scope != Scope::kFrontN && call.layer == call.h2o_range.first;
    if (!first_front && !first_kept) return std::nullopt;
  }
  return budget;
}

ColdRange ColdRangeOf(const Config& c, uint64_t budget) {
  const uint64_t begin = std::min(budget, static_cast<uint64_t>(c.hot_sink_tokens));
  const uint64_t hot = std::min(budget, static_cast<uint64_t>(c.hot_recent_tokens));
  return {begin, std::max(begin, budget - hot)};
}

bool Shrink(const ColdRange& cold, LayerClock& clock) {
  if (cold.end >= clock.last_budget) return false;
  clock.last_step = 0;
  clock.last_budget = cold.end;
  return true;
}

std::optional<EncodeRange> NextEncode(const Config& c, uint64_t trigger_min,
                                      uint64_t update_interval, const LayerClock& clock,
                                      const ColdRange& cold, uint64_t length, uint64_t token_step) {
  if (length < std::max<uint64_t>(1, trigger_min) || cold.size() == 0) return std::nullopt;
  const uint64_t growth = cold.end - clock.last_budget;
  if (clock.updates == 0) {
    const uint64_t bootstrap = BootstrapTokens(c);
    if (growth < bootstrap) return std::nullopt;
    const uint64_t tail = cold.end - std::min(cold.end, bootstrap);
    const uint64_t begin = c.mode == Mode::kProbe ? cold.begin : std::max(cold.begin, tail);
    return EncodeRange{begin, std::min(bootstrap, cold.size()), true};
  }
  const uint64_t step = GroupedStep(c);
  const uint64_t overlap = c.mode == Mode::kStore ? step / 8 : 0;
  const bool due = token_step - clock.last_step >= std::max<uint64_t>(1, update_interval);
  if (!due || growth + overlap < step) return std::nullopt;
  const uint64_t next = std::max(clock.last_budget, cold.begin);
  const uint64_t begin = std::max(next - std::min(next, overlap), cold.begin);
  const uint64_t tokens = std::min(step, cold.end - std::min(cold.end, begin));
  if (tokens == 0) return std::nullopt;
  return EncodeRange{begin, tokens, false};
}

void Advance(const Config& c, const ColdRange& cold, const EncodeRange& range, uint64_t token_step,
             LayerClock& clock) {
  ++clock.updates;
  clock.last_step = token_step;
  clock.last_budget =
      c.mode == Mode::kProbe && range.bootstrap ? cold.end : range.begin + range.tokens;
}

}  // namespace kv::mnn::runtime
