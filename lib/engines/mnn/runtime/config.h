// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "lib/core/codec/planes/gear.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"

namespace kv::mnn::runtime {

// The layers that the engine's lossless path works on. The values are the engine's own numbers.
enum class Scope { kNone = 0, kFrontN = 1, kH2oKept = 2, kFrontNAndH2oKept = 3 };
std::string_view Name(Scope scope);

enum class Mode { kProbe = 0, kFull = 1, kStore = 2 };
std::string_view Name(Mode mode);
std::optional<Mode> ParseMode(std::string_view name);

// The engine's parameters with the engine's defaults. The path runs only if the first three are all
// on. The trigger length and the update interval are those of H2O, but this path counts the
// interval in tokens.
struct Config {
  bool enable = false;
  bool gear_delta = false;  // true if the codec is "gear_delta"; any other word means no codec
  bool runtime_enable = false;
  Scope scope = Scope::kFrontN;
  Mode mode = Mode::kProbe;
  int64_t front_n = 2;
  int64_t block_tokens = 128;
  int64_t hot_recent_tokens = 256;
  int64_t hot_sink_tokens = 16;
  int64_t kept_sample_layers = 1;  // 0 means all
  int64_t kept_sample_token_interval = 1;
  int64_t front_sample_token_interval = 1;
  bool store_disable_front = false;
  int64_t store_bootstrap_tokens = 32;      // 0 means max(16, block_tokens / 2)
  int64_t store_grouped_step_tokens = 256;  // 0 means 3 * block_tokens
  // The engine's default for K names pair_delta, which its own parser does not know, so the set is
  // empty.
  PredictorSet predictors_k = {};
  PredictorSet predictors_v = {};
  int64_t async_threads = 1;
  int64_t max_queue = 256;
  int64_t decode_cache_blocks = 64;
  bool strict_roundtrip_check = false;
  std::string codec_runtime = "fp16_gear_predictive_v3";  // the engine ignores this field

  bool active() const { return enable && gear_delta && runtime_enable; }
  bool operator==(const Config&) const = default;
};

// Returns the values that the engine computes with. It clamps values and refuses none.
Config Sanitised(const Config& config);

// Returns the parameters that the gate's scripts set, on top of the engine's defaults.
Config GateConfig(Mode mode);
eviction::BlockConfig GateH2oConfig();

using ParameterValue = std::variant<double, std::string_view>;

// Visits the parameters under the names of the engine's meta fields, such as "h2o_lossless_scope".
// Switches and counts are numbers; the others are the words of the engine's config file.
void ForEachParameter(
    const Config& config,
    const std::function<void(std::string_view name, const ParameterValue& value)>& visit);

enum class SetResult { kSet, kNoSuchName, kWrongType };
// Sets one parameter. Reads words as the engine does: a scope that it does not know becomes
// front_n, and a mode that it does not know becomes probe.
SetResult SetParameter(std::string_view meta_name, const ParameterValue& value, Config& config);

// Decides when the engine's lossless path considers a layer, and which tokens it then encodes. This
// is pure arithmetic on lengths. READ ME FIRST. The engine has three surprises, which a replay must
// reproduce:
// 1. The token budget of a layer that H2O compacts is only a length. The encoded range is a prefix
//    of the cache as it is, not the tokens that H2O keeps.
// 2. Outside probe mode the first range is the end of the cold zone, and the watermark moves there.
//    Tokens before that range are never compressed.
// 3. A call that triggered H2O may discard H2O's plan again (the shrink rule).

// One layer call, as input of the rules.
struct LayerCall {
  uint32_t layer = 0;
  eviction::LayerRange h2o_range;  // whether or not H2O is enabled
  uint64_t token_step = 0;         // decode tokens so far, counted from 1
  uint64_t length = 0;             // tokens in the cache, including the new one
  uint64_t final_keep_tokens = 0;  // budget of H2O, or the length if H2O is off
};

// Returns the layer's token budget in this call, or nothing if scope, mode or sampling exclude it.
std::optional<uint64_t> TokenBudget(const Config& sanitised, const LayerCall& call);

struct ColdRange {
  uint64_t begin = 0, end = 0;
  uint64_t size() const { return end - begin; }
  bool operator==(const ColdRange&) const = default;
};
ColdRange FindColdRange(const Config& sanitised, uint64_t budget);

// State of a layer between calls.
struct LayerClock {
  uint64_t updates = 0;
  uint64_t last_step = 0;    // token step of the last update
  uint64_t last_budget = 0;  // watermark: tokens before it have been handled
};

// If the cold range ends before the watermark, the blocks made so far no longer fit: resets the
// clock and returns true.
bool Shrink(const ColdRange& cold, LayerClock& clock);

struct EncodeRange {
  uint64_t begin = 0, tokens = 0;
  bool bootstrap = false;  // true for the layer's first range
};
// Returns the range to encode now, if any. `trigger_min` and `update_interval` are parameters of
// H2O; the interval counts tokens here.
std::optional<EncodeRange> NextEncode(const Config& sanitised, uint64_t trigger_min,
                                      uint64_t update_interval, const LayerClock& clock,
                                      const ColdRange& cold, uint64_t length, uint64_t token_step);
// Moves the clock on after the range was encoded, given to a worker or skipped.
void Advance(const Config& sanitised, const ColdRange& cold, const EncodeRange& range,
             uint64_t token_step, LayerClock& clock);

}  // namespace kv::mnn::runtime
