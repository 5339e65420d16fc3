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
#include "lib/study/eviction/block_config.h"

namespace kv::mnn::runtime {

// Which layers the engine's lossless path touches. The values are the engine's own numbers.
enum class Scope { kNone = 0, kFrontN = 1, kH2oKept = 2, kFrontNAndH2oKept = 3 };
std::string_view Name(Scope scope);

enum class Mode { kProbe = 0, kFull = 1, kStore = 2 };
std::string_view Name(Mode mode);
std::optional<Mode> ParseMode(std::string_view name);

// The engine's parameters with the engine's defaults. The first three must all be on for the path
// to run. The trigger length and the update interval are those of H2O, but this path counts the
// interval in tokens.
struct Config {
  bool enable = false;
  bool gear_delta = false;  // whether the codec is "gear_delta"; any other word means none
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
  // The engine's default for K names pair_delta, which its own parser does not know.
  PredictorSet predictors_k = {};
  PredictorSet predictors_v = {};
  int64_t async_threads = 1;
  int64_t max_queue = 256;
  int64_t decode_cache_blocks = 64;
  bool strict_roundtrip_check = false;
  std::string codec_runtime = "fp16_gear_predictive_v3";  // the engine never reads it

  bool active() const { return enable && gear_delta && runtime_enable; }
  bool operator==(const Config&) const = default;
};

// Returns the values that the engine computes with. It clamps values and refuses none.
Config Sanitised(const Config& config);

// The parameters that the gate's scripts set, over the engine's defaults.
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

}  // namespace kv::mnn::runtime
