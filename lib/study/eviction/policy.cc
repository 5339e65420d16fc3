// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/policy.h"

namespace kv::eviction {

// Each factory is defined in a file of policies/; policies that share a rule share its factory.
std::unique_ptr<Rule> MakeBlockRule(const RuleSetup& setup);
std::unique_ptr<Rule> MakeHeavyHitterRule(const RuleSetup& setup);
std::unique_ptr<Rule> MakeKeyDiffRule(const RuleSetup& setup);
std::unique_ptr<Rule> MakeKeyNormRule(const RuleSetup& setup);
std::unique_ptr<Rule> MakeOracleRule(const RuleSetup& setup);
std::unique_ptr<Rule> MakeRandomRule(const RuleSetup& setup);
std::unique_ptr<Rule> MakeSnapKvRule(const RuleSetup& setup);
std::unique_ptr<Rule> MakeStreamingRule(const RuleSetup& setup);
std::unique_ptr<Rule> MakeTovaRule(const RuleSetup& setup);
std::unique_ptr<Rule> MakeWindowRule(const RuleSetup& setup);

namespace {

constexpr PolicyInfo kPolicies[] = {
    {.name = "block",
     .summary = "the engine's rule: sink and recent blocks, then blocks by EMA score",
     .make = MakeBlockRule,
     .spending = Spending::kWholeBlocks,
     .needs_rows = true,
     .tuned_by = Tuning::kBlocks,
     .is_usual = true},
    {.name = "full", .summary = "nothing is evicted", .spending = Spending::kNone},
    {.name = "random", .summary = "seeded choice, per kv head", .make = MakeRandomRule},
    {.name = "window",
     .summary = "the most recent tokens",
     .make = MakeWindowRule,
     .is_usual = true,
     .keeps_recent = true},
    {.name = "streaming",
     .summary = "4 sinks and the most recent tokens (StreamingLLM)",
     .make = MakeStreamingRule,
     .tuned_by = Tuning::kSinks,
     .is_usual = true},
    {.name = "h2o",
     .summary = "half recent tokens, half by attention summed since the prompt, per kv head (H2O)",
     .make = MakeHeavyHitterRule,
     .needs_rows = true,
     .tuned_by = Tuning::kHeavyShare,
     .is_usual = true},
    {.name = "tova",
     .summary = "attention of the last row, mean over all heads (TOVA)",
     .make = MakeTovaRule,
     .needs_rows = true,
     .is_usual = true},
    {.name = "snapkv",
     .summary = "attention of the last 64 rows, pooled over 5 keys, per kv head (SnapKV)",
     .make = MakeSnapKvRule,
     .needs_rows = true,
     .at_prompt_end = true,
     .tuned_by = Tuning::kWindow,
     .is_usual = true},
    {.name = "pyramid",
     .summary = "as snapkv, with budgets falling from the first layer to the last",
     .make = MakeSnapKvRule,
     .spending = Spending::kPyramid,
     .needs_rows = true,
     .at_prompt_end = true,
     .tuned_by = Tuning::kWindow,
     .evenly = "snapkv"},
    {.name = "knorm",
     .summary = "keeps the keys with the smallest norms, per kv head",
     .make = MakeKeyNormRule,
     .needs_keys = true,
     .is_usual = true},
    {.name = "keydiff",
     .summary = "keeps the keys that differ most from the mean key, per kv head (KeyDiff)",
     .make = MakeKeyDiffRule,
     .needs_keys = true,
     .is_usual = true},
    {.name = "oracle-mass",
     .summary = "attention of later rows, per kv head: an upper bound that no real policy reaches",
     .make = MakeOracleRule,
     .needs_rows = true,
     .is_bound = true},
};

constexpr PaperParameter kPaperParameters[] = {
    {.flags = "--snapkv-window|--window",
     .key = "snapkv_window",
     .text = "Observation window of last rows, which are kept (snapkv, pyramid)",
     .value = &PaperParameters::window,
     .least = 1,
     .expected = "at least one row"},
    {.flags = "--snapkv-kernel|--kernel",
     .key = "snapkv_kernel",
     .text = "Neighbouring keys pooled to one score, odd (snapkv, pyramid)",
     .value = &PaperParameters::kernel,
     .odd = true,
     .expected = "an odd number of keys"},
    {.flags = "--pyramid-beta",
     .key = "pyramid_beta",
     .text = "Mean budget over that of the last layer (pyramid)",
     .value = &PaperParameters::pyramid_beta,
     .least = 1,
     .expected = "at least 1"},
    {.flags = "--streaming-sink|--sinks,--streaming-sinks",
     .key = "streaming_sinks",
     .text = "First tokens, which streaming always keeps",
     .value = &PaperParameters::sinks},
    {.flags = "--h2o-heavy-share|--h2o-heavy,--heavy-share",
     .key = "h2o_heavy_share",
     .text = "Share of h2o's budget for heavy hitters; the rest is recent",
     .value = &PaperParameters::heavy_share,
     .most = 1,
     .expected = "a share from 0 to 1"},
};

}  // namespace

std::span<const PaperParameter> PaperParameterTable() { return kPaperParameters; }

std::span<const PolicyInfo> Policies() { return kPolicies; }

const PolicyInfo* FindPolicy(std::string_view name) {
  for (const PolicyInfo& policy : kPolicies) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

}  // namespace kv::eviction
