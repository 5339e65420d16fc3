// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/result.h"

namespace kv::gate {

// The cases that a run must decide: either by name, or a least number of them.
struct ExpectedCases {
  std::vector<std::string> names = {};
  std::optional<uint64_t> count = {};

  bool any() const { return !names.empty() || count; }
};

struct Config {
  std::vector<CaseSpec> cases = {};
  std::vector<DeltaRule> baseline_rules = {};
  std::optional<std::vector<DeltaRule>> pinned_rules = {};  // absent: the rules on a baseline
  std::string pinned_commit = {};         // that a pinned baseline must be of; empty: any
  OnNotRun on_not_run = OnNotRun::kFail;  // for cases that only engine logs name
  ExpectedCases expected = {};
};

// Parses kvtool.gate-config/1, which is JSON with // comments. Paths in it are relative to
// `folder`. A case without rules takes those of "defaults", or else those of its engine for its
// name and mode; rules that it gives replace both. A config without cases takes them from engine
// logs, and must then give "expected_cases". Throws kConfig for an unknown key, metric or
// parameter, and names the nearest known one.
Config ParseConfig(std::string_view text, const std::filesystem::path& folder,
                   const Engine& engine);

// A config with one case of mode compare.
Config CompareConfig(const std::string& snapshot, const std::string& reference,
                     const Engine& engine);

// A config with all suite cases of the first engine over one snapshot. Cases that only the engine
// can run do not fail the gate.
Config SuiteConfig(const std::string& snapshot, const std::string& trace, const Engine& engine);

// The first engine's rules on how far figures may move from a baseline's.
std::vector<DeltaRule> DefaultBaselineRules(const Engine& engine);

// Parses a rule as a command line gives it, such as "loss.mean_kl<=0.01"; it is required. Throws
// kConfig.
Rule ParseRule(std::string_view text, const Engine& engine);

// Keeps only the cases with these names. Throws kUsage if a name has no case.
void KeepCases(const std::vector<std::string>& names, Config& config);

}  // namespace kv::gate
