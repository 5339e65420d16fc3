// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lib/engines/mnn/gate/engine.h"
#include "lib/engines/mnn/logs/demo.h"
#include "lib/engines/mnn/logs/suite.h"

namespace kv::mnn {
namespace {

using gate::CaseSpec;
using gate::Op;
using gate::Rule;

constexpr auto kAtLeast = Op::kAtLeast;
constexpr auto kAtMost = Op::kAtMost;
// The engine clamps every number, but it would really start so many threads.
constexpr uint64_t kMostThreads = 256;

constexpr gate::ParamInfo kParams[] = {
    {.name = "h2o_enable", .word = "evict"},
    {.name = "h2o_layer_start", .word = "evict_layer_start"},
    {.name = "h2o_layer_end", .word = "evict_layer_end"},
    {.name = "h2o_block_tokens", .word = "evict_block_tokens"},
    {.name = "h2o_sink_tokens", .word = "evict_sink_tokens"},
    {.name = "h2o_recent_tokens", .word = "evict_recent_tokens"},
    {.name = "h2o_target_mode", .words = "static|adaptive", .word = "evict_target_mode"},
    {.name = "h2o_target_keep_ratio", .word = "evict_keep_fraction"},
    {.name = "h2o_target_lossy_ratio", .word = "evict_target_ratio"},
    {.name = "h2o_ema_alpha", .word = "evict_ema_alpha"},
    {.name = "h2o_update_interval", .word = "evict_update_interval"},
    {.name = "h2o_trigger_min_tokens", .word = "evict_trigger_min_tokens"},
    {.name = "h2o_lossless_enable", .word = "compress"},
    {.name = "h2o_lossless_scope",
     .words = "none|front_n|h2o_kept|front_n_and_h2o_kept|front_n+h2o_kept",
     .most = 3,
     .word = "compress_scope"},
    {.name = "h2o_lossless_front_n", .word = "compress_front_layers"},
    {.name = "h2o_lossless_codec", .words = "none|gear_delta", .word = "compress_codec"},
    {.name = "h2o_lossless_runtime_enable", .word = "compress_runtime_enable"},
    {.name = kModeParam, .words = "probe|full|store", .word = "compress_mode"},
    {.name = "h2o_lossless_block_tokens", .word = "compress_block_tokens"},
    {.name = "h2o_lossless_hot_recent_tokens", .word = "compress_hot_recent_tokens"},
    {.name = "h2o_lossless_hot_sink_tokens", .word = "compress_hot_sink_tokens"},
    {.name = "h2o_lossless_kept_sample_layers", .word = "compress_kept_sample_layers"},
    {.name = "h2o_lossless_kept_sample_token_interval",
     .word = "compress_kept_sample_token_interval"},
    {.name = "h2o_lossless_front_sample_token_interval",
     .word = "compress_front_sample_token_interval"},
    {.name = "h2o_lossless_store_disable_front", .word = "compress_store_disable_front"},
    {.name = "h2o_lossless_store_bootstrap_tokens", .word = "compress_store_bootstrap_tokens"},
    {.name = "h2o_lossless_store_grouped_step_tokens",
     .word = "compress_store_grouped_step_tokens"},
    {.name = "h2o_lossless_codec_runtime", .words = "*", .word = "compress_codec_runtime"},
    {.name = "h2o_lossless_predictors_k", .words = "*", .word = "compress_predictors_k"},
    {.name = "h2o_lossless_predictors_v", .words = "*", .word = "compress_predictors_v"},
    {.name = "h2o_lossless_async_threads", .most = kMostThreads, .word = "compress_async_threads"},
    {.name = "h2o_lossless_max_queue", .word = "compress_max_queue"},
    {.name = "h2o_lossless_decode_cache_blocks", .word = "compress_decode_cache_blocks"},
    {.name = "h2o_lossless_strict_roundtrip_check", .word = "compress_strict_roundtrip_check"},
};

// The thresholds that the suite's analyzer applies to every runtime case.
std::vector<Rule> CommonRules(const logs::AnalyzerOptions& options) {
  return {{"lossy_best", kAtLeast, options.lossy_target},
          {"lossless_selected_value", kAtLeast, options.lossless_target},
          {"decode_drop_ratio", kAtMost, options.decode_drop_target},
          {"runtime_queue_peak_best", kAtMost, options.max_lossless_queue_peak},
          {"runtime_fallback_best", kAtMost, options.max_lossless_fallback}};
}

Rule IsTrue(std::string metric) {
  return {std::move(metric), Op::kEqual, 1, false, false, /*is_flag=*/true};
}

// The original has no thresholds on the ratios of real prompts.
std::vector<Rule> DemoRules() {
  return {{"decode_drop_ratio", kAtMost, logs::DemoOptions{}.decode_drop_target},
          IsTrue("decode_pass"),
          {"runtime_decomp_best_us", Op::kAbove, 0}};
}

}  // namespace

std::span<const gate::ParamInfo> GateParams() { return kParams; }

std::span<const std::string_view> CaseNames() {
  static const auto names = [] {
    std::array<std::string_view, std::size(logs::kSuiteCases)> all;
    std::transform(std::begin(logs::kSuiteCases), std::end(logs::kSuiteCases), all.begin(),
                   [](const logs::SuiteCaseName& known) { return known.name; });
    return all;
  }();
  return names;
}

std::vector<Rule> RulesOf(std::string_view mode) {
  const logs::AnalyzerOptions options =
      logs::SuiteOptions(fmt::format("{}_{}", kRuntimeSuite, mode));
  std::vector<Rule> rules = CommonRules(options);
  // Ours: what a replay can say of speed stands beside what only an engine can.
  rules.push_back({"attention_drop_ratio", kAtMost, options.decode_drop_target, false, true});
  if (options.require_runtime_decomp) {
    rules.push_back({"runtime_decomp_best_us", Op::kAbove, 0});
    rules.push_back({"runtime_decomp_best_us", kAtMost, options.max_lossless_decomp_us});
  }
  rules.push_back({"runtime_async_wait_best_us", kAtMost, options.max_lossless_async_wait_us});
  if (options.require_kv_content_consistency)
    rules.push_back(IsTrue("kv_content_consistency_pass"));
  return rules;
}

CaseSpec SuiteCaseOf(std::string_view name) {
  CaseSpec spec;
  spec.name = name;
  spec.engine = &Engine();
  spec.only_engine = name.starts_with(kDemoSuite);
  spec.suite = spec.only_engine ? kDemoSuite : kRuntimeSuite;
  const auto* const known =
      std::find_if(std::begin(logs::kSuiteCases), std::end(logs::kSuiteCases),
                   [&](const logs::SuiteCaseName& one) { return one.name == name; });
  spec.mode = known->mode;
  if (name == logs::kBaselineCase) {
    spec.params = {{"h2o_enable", 0.0}, {"h2o_lossless_enable", 0.0}};
    spec.rules = CommonRules(logs::SuiteOptions(name));
  } else {
    spec.rules = spec.only_engine ? DemoRules() : RulesOf(spec.mode);
  }
  return spec;
}

}  // namespace kv::mnn
