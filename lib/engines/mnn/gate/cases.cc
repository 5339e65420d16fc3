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
    {"h2o_enable"},
    {"h2o_layer_start"},
    {"h2o_layer_end"},
    {"h2o_block_tokens"},
    {"h2o_sink_tokens"},
    {"h2o_recent_tokens"},
    {"h2o_target_mode", "static|adaptive"},
    {"h2o_target_keep_ratio"},
    {"h2o_target_lossy_ratio"},
    {"h2o_ema_alpha"},
    {"h2o_update_interval"},
    {"h2o_trigger_min_tokens"},
    {"h2o_lossless_enable"},
    {"h2o_lossless_scope", "none|front_n|h2o_kept|front_n_and_h2o_kept|front_n+h2o_kept"},
    {"h2o_lossless_front_n"},
    {"h2o_lossless_codec", "none|gear_delta"},
    {"h2o_lossless_runtime_enable"},
    {kModeParam, "probe|full|store"},
    {"h2o_lossless_block_tokens"},
    {"h2o_lossless_hot_recent_tokens"},
    {"h2o_lossless_hot_sink_tokens"},
    {"h2o_lossless_kept_sample_layers"},
    {"h2o_lossless_kept_sample_token_interval"},
    {"h2o_lossless_front_sample_token_interval"},
    {"h2o_lossless_store_disable_front"},
    {"h2o_lossless_store_bootstrap_tokens"},
    {"h2o_lossless_store_grouped_step_tokens"},
    {"h2o_lossless_codec_runtime", "*"},
    {"h2o_lossless_predictors_k", "*"},
    {"h2o_lossless_predictors_v", "*"},
    {"h2o_lossless_async_threads", {}, kMostThreads},
    {"h2o_lossless_max_queue"},
    {"h2o_lossless_decode_cache_blocks"},
    {"h2o_lossless_strict_roundtrip_check"},
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
