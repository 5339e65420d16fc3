// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The table of eviction policies: their properties, parameters and rules.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/block_choice.h"

namespace kv::eviction {

class Rule;
struct RuleSetup;

// The way in which a policy turns a budget into the number of tokens that one layer keeps.
enum class Spending {
  kTokens,       // exactly the budget
  kWholeBlocks,  // whole blocks, at least sinks and recent tokens
  kPyramid,      // more in the first layers, less in the last ones; their mean is the budget
  kNone,         // the policy never evicts
};

// The parameters that a policy has: those of BlockConfig, or one of PaperParameters.
enum class Tuning { kNone, kBlocks, kSinks, kHeavyShare, kWindow };

// A row of the table of policies (policy.cc).
struct PolicyInfo {
  std::string_view name;
  std::string_view summary;
  // Makes the rule that chooses a layer's tokens; null if the policy never evicts.
  std::unique_ptr<Rule> (*make)(const RuleSetup& setup) = nullptr;
  Spending spending = Spending::kTokens;
  // True if the rule needs attention rows; otherwise lengths, positions or keys suffice.
  bool needs_rows = false;
  // True if the rule reads keys directly. Rules that need rows reach keys through them.
  bool needs_keys = false;
  // True if the paper compresses once, at the end of the prompt, rather than at every step.
  bool at_prompt_end = false;
  Tuning tuned_by = Tuning::kNone;
  // True if the policy is tried by default.
  bool is_usual = false;
  // True if the policy is a bound: it uses later rows, which no engine knows.
  bool is_bound = false;
  // True if the policy keeps the most recent tokens and nothing else.
  bool keeps_recent = false;
  // The policy that this one equals if a budget is spread evenly over layers.
  std::string_view evenly = {};
};
std::span<const PolicyInfo> Policies();
const PolicyInfo* FindPolicy(std::string_view name);

enum class Granularity { kLayer, kKvHead };

// The parameters of the papers, with the papers' values. PaperParameterTable() describes each.
struct PaperParameters {
  uint64_t window = 64;
  uint64_t kernel = 5;
  uint64_t pyramid_beta = 20;
  uint64_t sinks = 4;
  double heavy_share = 0.5;
  bool grow = true;  // false for snapkv and pyramid: they evict only at the end of the prompt

  bool operator==(const PaperParameters&) const = default;
};

// Describes one number of PaperParameters: its option, its key in documents and its limits.
struct PaperParameter {
  std::string_view flags;  // as CommandLine::Add takes them: deprecated names follow a '|'
  std::string_view key;
  std::string_view text;
  std::variant<uint64_t PaperParameters::*, double PaperParameters::*> value;
  double least = 0, most = UINT32_MAX;  // UINT32_MAX: more rows than a cache can have
  bool odd = false;
  // end of the message for a value out of limits
  std::string_view expected = "a number of rows of a cache";
};
std::span<const PaperParameter> PaperParameterTable();

struct PolicyOptions {
  BlockConfig config;  // for policy "block"; sanitised
  PaperParameters paper;
  WeightRule weights = WeightRule::kSoftmax;
  Granularity granularity = Granularity::kLayer;  // for policy "block"
  uint64_t seed = 0;                              // for policy "random"
  // True if a budget holds at the end of each step, from the end of the prompt on. "block" then
  // scores the rows of the prompt as well, and "snapkv" scores only once.
  bool on_budget = false;
};

// The place of a layer in the model, for policies that spread a budget over layers.
struct LayerPlace {
  bool in_range = true;           // false if the layer evicts nothing
  uint32_t index = 0, count = 1;  // place among the layers that evict, and their number
};

}  // namespace kv::eviction
