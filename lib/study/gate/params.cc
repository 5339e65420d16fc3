// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/params.h"

#include <algorithm>

namespace kv::gate {
namespace {

constexpr ParamInfo kParams[] = {
    {"h2o_enable", ""},
    {"h2o_layer_start", ""},
    {"h2o_layer_end", ""},
    {"h2o_block_tokens", ""},
    {"h2o_sink_tokens", ""},
    {"h2o_recent_tokens", ""},
    {"h2o_target_mode", "static|adaptive"},
    {"h2o_target_keep_ratio", ""},
    {"h2o_target_lossy_ratio", ""},
    {"h2o_ema_alpha", ""},
    {"h2o_update_interval", ""},
    {"h2o_trigger_min_tokens", ""},
    {"h2o_lossless_enable", ""},
    {"h2o_lossless_scope", "none|front_n|h2o_kept|front_n_and_h2o_kept|front_n+h2o_kept"},
    {"h2o_lossless_front_n", ""},
    {"h2o_lossless_codec", "none|gear_delta"},
    {"h2o_lossless_runtime_enable", ""},
    {"h2o_lossless_runtime_mode", "probe|full|store"},
    {"h2o_lossless_block_tokens", ""},
    {"h2o_lossless_hot_recent_tokens", ""},
    {"h2o_lossless_hot_sink_tokens", ""},
    {"h2o_lossless_kept_sample_layers", ""},
    {"h2o_lossless_kept_sample_token_interval", ""},
    {"h2o_lossless_front_sample_token_interval", ""},
    {"h2o_lossless_store_disable_front", ""},
    {"h2o_lossless_store_bootstrap_tokens", ""},
    {"h2o_lossless_store_grouped_step_tokens", ""},
    {"h2o_lossless_codec_runtime", "*"},
    {"h2o_lossless_predictors_k", "*"},
    {"h2o_lossless_predictors_v", "*"},
    {"h2o_lossless_async_threads", ""},
    {"h2o_lossless_max_queue", ""},
    {"h2o_lossless_decode_cache_blocks", ""},
    {"h2o_lossless_strict_roundtrip_check", ""},
};

}  // namespace

std::span<const ParamInfo> KnownParams() { return kParams; }

const ParamInfo* FindParam(std::string_view name) {
  const auto* found = std::find_if(std::begin(kParams), std::end(kParams),
                                   [&](const ParamInfo& info) { return info.name == name; });
  return found == std::end(kParams) ? nullptr : found;
}

void Assign(std::string_view name, ParamValue value, Params& params) {
  const auto found =
      std::find_if(params.begin(), params.end(), [&](const auto& p) { return p.first == name; });
  if (found != params.end()) {
    found->second = std::move(value);
  } else {
    params.emplace_back(std::string(name), std::move(value));
  }
}

void Merge(const Params& over, Params& params) {
  for (const auto& [name, value] : over) Assign(name, value, params);
}

const ParamValue* Find(const Params& params, std::string_view name) {
  const auto found =
      std::find_if(params.begin(), params.end(), [&](const auto& p) { return p.first == name; });
  return found == params.end() ? nullptr : &found->second;
}

bool IsOn(const Params& params, std::string_view name) { return NumberOr(params, name, 1) != 0; }

double NumberOr(const Params& params, std::string_view name, double fallback) {
  const ParamValue* value = Find(params, name);
  const double* number = value == nullptr ? nullptr : std::get_if<double>(value);
  return number == nullptr ? fallback : *number;
}

}  // namespace kv::gate
