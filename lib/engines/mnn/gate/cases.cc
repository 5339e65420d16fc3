// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/cases.h"

#include "lib/engines/mnn/gate/engine.h"

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

// Of every runtime case: the suite's environment.
std::vector<Rule> Common(double lossy, double lossless, double decode_drop) {
  return {{"lossy_best", kAtLeast, lossy},
          {"lossless_selected_value", kAtLeast, lossless},
          {"decode_drop_ratio", kAtMost, decode_drop},
          {"runtime_queue_peak_best", kAtMost, 8},
          {"runtime_fallback_best", kAtMost, 0}};
}

std::vector<Rule> BaselineRules() { return Common(1.0, 1.0, 1.0); }

std::vector<Rule> LlmDemoRules() {
  // No lossy and no lossless threshold: the original has none here.
  return {{"decode_drop_ratio", kAtMost, 0.08},
          {"decode_pass", Op::kEqual, 1, false, false, true},
          {"runtime_decomp_best_us", Op::kAbove, 0}};
}

}  // namespace

std::span<const gate::ParamInfo> GateParams() { return kParams; }

std::vector<gate::Rule> RulesOf(std::string_view mode) {
  std::vector<Rule> rules = Common(3.0, 1.3, 0.05);
  // Ours: what a replay can say of speed stands beside what only an engine can.
  rules.push_back({"attention_drop_ratio", kAtMost, 0.05, false, true});
  if (mode == "probe") {
    rules.push_back({"runtime_async_wait_best_us", kAtMost, 20000});
    return rules;
  }
  const bool store = mode == "store";
  rules.push_back({"runtime_decomp_best_us", Op::kAbove, 0});
  rules.push_back({"runtime_decomp_best_us", kAtMost, store ? 70000.0 : 30000.0});
  rules.push_back({"runtime_async_wait_best_us", kAtMost, store ? 40000.0 : 20000.0});
  rules.push_back({"kv_content_consistency_pass", Op::kEqual, 1, false, false, true});
  return rules;
}

CaseSpec SuiteCaseOf(std::string_view name) {
  CaseSpec spec;
  spec.name = name;
  spec.engine = &Engine();
  spec.only_engine = name.starts_with(kDemoSuite);
  spec.suite = spec.only_engine ? kDemoSuite : kRuntimeSuite;
  spec.mode = name.substr(name.rfind('_') + 1);
  if (name == kBaselineCase) {
    spec.mode = "full";
    spec.params = {{"h2o_enable", 0.0}, {"h2o_lossless_enable", 0.0}};
    spec.rules = BaselineRules();
    return spec;
  }
  spec.rules = spec.only_engine ? LlmDemoRules() : RulesOf(spec.mode);
  return spec;
}

}  // namespace kv::mnn
