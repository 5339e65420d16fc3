// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The table of the lossless path's parameters, and the rules of when it encodes which tokens.
#include "lib/engines/mnn/runtime/config.h"

#include <algorithm>
#include <cmath>

namespace kv::mnn::runtime {
namespace {

// Upper bound of parameters: far beyond any cache, and small enough that sums cannot overflow.
constexpr int64_t kMost = int64_t{1} << 40;

struct Parameter {
  std::string_view name;
  std::variant<bool Config::*, int64_t Config::*, Scope Config::*, Mode Config::*,
               PredictorSet Config::*, std::string Config::*>
      member;
  int64_t least = 0;  // lower bound of a count
};

constexpr std::string_view kCodecName = "h2o_lossless_codec";

constexpr Parameter kParameters[] = {
    {"h2o_lossless_enable", &Config::enable},
    {"h2o_lossless_scope", &Config::scope},
    {"h2o_lossless_front_n", &Config::front_n},
    {kCodecName, &Config::gear_delta},
    {"h2o_lossless_runtime_enable", &Config::runtime_enable},
    {"h2o_lossless_runtime_mode", &Config::mode},
    {"h2o_lossless_block_tokens", &Config::block_tokens, 1},
    {"h2o_lossless_hot_recent_tokens", &Config::hot_recent_tokens},
    {"h2o_lossless_hot_sink_tokens", &Config::hot_sink_tokens},
    {"h2o_lossless_kept_sample_layers", &Config::kept_sample_layers},
    {"h2o_lossless_kept_sample_token_interval", &Config::kept_sample_token_interval},
    {"h2o_lossless_front_sample_token_interval", &Config::front_sample_token_interval},
    {"h2o_lossless_store_disable_front", &Config::store_disable_front},
    {"h2o_lossless_store_bootstrap_tokens", &Config::store_bootstrap_tokens},
    {"h2o_lossless_store_grouped_step_tokens", &Config::store_grouped_step_tokens},
    {"h2o_lossless_codec_runtime", &Config::codec_runtime},
    {"h2o_lossless_predictors_k", &Config::predictors_k},
    {"h2o_lossless_predictors_v", &Config::predictors_v},
    {"h2o_lossless_async_threads", &Config::async_threads},
    {"h2o_lossless_max_queue", &Config::max_queue, 1},
    {"h2o_lossless_decode_cache_blocks", &Config::decode_cache_blocks},
    {"h2o_lossless_strict_roundtrip_check", &Config::strict_roundtrip_check},
};

int64_t Whole(double value) {
  if (std::isnan(value)) return 0;
  return static_cast<int64_t>(
      std::clamp(value, -static_cast<double>(kMost), static_cast<double>(kMost)));
}

Scope ToScope(const ParameterValue& value) {
  if (const auto* number = std::get_if<double>(&value)) {
    const int64_t scope = Whole(*number);
    return scope == 0 || scope == 2 || scope == 3 ? static_cast<Scope>(scope) : Scope::kFrontN;
  }
  const auto word = std::get<std::string_view>(value);
  if (word == "none") return Scope::kNone;
  if (word == "front_n_and_h2o_kept" || word == "front_n+h2o_kept") return Scope::kFrontNAndH2oKept;
  return word == "h2o_kept" ? Scope::kH2oKept : Scope::kFrontN;
}

Mode ToMode(const ParameterValue& value) {
  if (const auto* number = std::get_if<double>(&value)) {
    const int64_t mode = Whole(*number);
    return mode == 1 || mode == 2 ? static_cast<Mode>(mode) : Mode::kProbe;
  }
  return ParseMode(std::get<std::string_view>(value)).value_or(Mode::kProbe);
}

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

// Layers that H2O compacts are sampled by layer and by token.
bool IsSampledKept(const Config& c, const LayerCall& call) {
  const bool is_sampled =
      c.kept_sample_layers == 0 ||
      call.layer - call.h2o_range.first < static_cast<uint64_t>(c.kept_sample_layers);
  return is_sampled && IsDue(c.kept_sample_token_interval, call.token_step);
}

bool Covers(Scope scope, Scope part) { return scope == part || scope == Scope::kFrontNAndH2oKept; }

}  // namespace

std::string_view Name(Scope scope) {
  constexpr std::string_view kNames[] = {"none", "front_n", "h2o_kept", "front_n_and_h2o_kept"};
  return kNames[static_cast<int>(scope)];
}

std::string_view Name(Mode mode) {
  constexpr std::string_view kNames[] = {"probe", "full", "store"};
  return kNames[static_cast<int>(mode)];
}

std::optional<Mode> ParseMode(std::string_view name) {
  for (const Mode mode : {Mode::kProbe, Mode::kFull, Mode::kStore}) {
    if (name == Name(mode)) return mode;
  }
  return std::nullopt;
}

Config Sanitised(const Config& config) {
  Config c = config;
  for (const Parameter& parameter : kParameters) {
    const auto* count = std::get_if<int64_t Config::*>(&parameter.member);
    if (count != nullptr) c.** count = std::clamp(c.**count, parameter.least, kMost);
  }
  return c;
}

Config GateConfig(Mode mode) {
  Config c;
  const bool store = mode == Mode::kStore;
  c.enable = c.gear_delta = c.runtime_enable = true;
  c.scope = Scope::kFrontNAndH2oKept;
  c.mode = mode;
  c.kept_sample_token_interval = 2;
  c.front_sample_token_interval = store ? 2 : 1;
  c.store_disable_front = store;
  c.store_bootstrap_tokens = store ? 16 : 128;
  c.store_grouped_step_tokens = store ? 384 : 128;
  c.async_threads = 2;
  c.strict_roundtrip_check = true;
  return c;
}

eviction::BlockConfig GateH2oConfig() {
  eviction::BlockConfig c;
  c.block_tokens = 32;
  c.sink_tokens = 16;
  c.recent_tokens = 96;
  c.target_keep_ratio = 0.30f;
  c.target_lossy_ratio = 3.5f;
  c.trigger_min_tokens = 384;
  return c;
}

void ForEachParameter(
    const Config& config,
    const std::function<void(std::string_view name, const ParameterValue& value)>& visit) {
  for (const Parameter& parameter : kParameters) {
    if (parameter.name == kCodecName) {
      visit(parameter.name, std::string_view(config.gear_delta ? "gear_delta" : "none"));
    } else if (const auto* flag = std::get_if<bool Config::*>(&parameter.member)) {
      visit(parameter.name, config.**flag ? 1.0 : 0.0);
    } else if (const auto* whole = std::get_if<int64_t Config::*>(&parameter.member)) {
      visit(parameter.name, static_cast<double>(config.**whole));
    } else if (const auto* scope = std::get_if<Scope Config::*>(&parameter.member)) {
      visit(parameter.name, Name(config.**scope));
    } else if (const auto* mode = std::get_if<Mode Config::*>(&parameter.member)) {
      visit(parameter.name, Name(config.**mode));
    } else if (const auto* set = std::get_if<PredictorSet Config::*>(&parameter.member)) {
      const std::string text = ToText(config.**set);
      visit(parameter.name, std::string_view(text));
    } else {
      visit(parameter.name,
            std::string_view(config.*std::get<std::string Config::*>(parameter.member)));
    }
  }
}

SetResult SetParameter(std::string_view meta_name, const ParameterValue& value, Config& config) {
  const auto* found = std::find_if(std::begin(kParameters), std::end(kParameters),
                                   [&](const Parameter& p) { return p.name == meta_name; });
  if (found == std::end(kParameters)) return SetResult::kNoSuchName;
  const auto* number = std::get_if<double>(&value);
  const auto* word = std::get_if<std::string_view>(&value);
  if (meta_name == kCodecName) {
    config.gear_delta = number != nullptr ? *number == 1 : *word == "gear_delta";
  } else if (const auto* scope = std::get_if<Scope Config::*>(&found->member)) {
    config.** scope = ToScope(value);
  } else if (const auto* mode = std::get_if<Mode Config::*>(&found->member)) {
    config.** mode = ToMode(value);
  } else if (const auto* flag = std::get_if<bool Config::*>(&found->member)) {
    if (number == nullptr) return SetResult::kWrongType;
    config.** flag = *number != 0;
  } else if (const auto* whole = std::get_if<int64_t Config::*>(&found->member)) {
    if (number == nullptr) return SetResult::kWrongType;
    config.** whole = Whole(*number);
  } else if (word == nullptr) {
    return SetResult::kWrongType;
  } else if (const auto* set = std::get_if<PredictorSet Config::*>(&found->member)) {
    config.** set = ParsePredictors(*word);
  } else {
    config.*std::get<std::string Config::*>(found->member) = *word;
  }
  return SetResult::kSet;
}

std::optional<uint64_t> TokenBudget(const Config& c, const LayerCall& call) {
  const bool has_front = Covers(c.scope, Scope::kFrontN);
  const bool has_kept = Covers(c.scope, Scope::kH2oKept);
  const bool in_front = call.layer < static_cast<uint64_t>(c.front_n);
  const bool front = has_front && in_front;
  const bool kept = has_kept && call.h2o_range.Contains(call.layer);
  const bool front_disabled = c.mode == Mode::kStore && c.store_disable_front && in_front;
  const bool excluded[] = {
      !front && !kept,
      front_disabled && !kept,
      // The interval holds for the first layers of every scope.
      c.mode != Mode::kProbe && in_front && !IsDue(c.front_sample_token_interval, call.token_step),
      c.mode == Mode::kFull && kept && !front && !IsSampledKept(c, call),
      // In probe mode the first layer of each kind represents all of them.
      c.mode == Mode::kProbe && !(has_front && call.layer == 0) &&
          !(has_kept && call.layer == call.h2o_range.first),
  };
  if (std::ranges::find(excluded, true) != std::end(excluded)) return std::nullopt;
  // Front layers get their whole length, layers that H2O compacts get the length that it will
  // leave.
  return front && !front_disabled ? call.length : call.final_keep_tokens;
}

ColdRange FindColdRange(const Config& c, uint64_t budget) {
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
    // Outside probe mode the first range is the end of the cold zone (surprise 2 of the header).
    const uint64_t tail = cold.end - std::min(cold.end, bootstrap);
    const uint64_t begin = c.mode == Mode::kProbe ? cold.begin : std::max(cold.begin, tail);
    return EncodeRange{begin, std::min(bootstrap, cold.size()), true};
  }
  const uint64_t step = GroupedStep(c);
  // Store mode encodes an eighth of the last range again.
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
