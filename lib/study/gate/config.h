// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by config.cc, first_config.cc

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/result.h"

namespace kv::gate {

// The cases that a run must decide: their names, or a minimum number.
struct ExpectedCases {
  std::vector<std::string> names = {};
  std::optional<uint64_t> count = {};

  bool any() const { return !names.empty() || count; }
};

struct Config {
  std::vector<CaseSpec> cases = {};
  std::vector<DeltaRule> baseline_rules = {};
  std::optional<std::vector<DeltaRule>> pinned_rules = {};  // if absent, baseline_rules apply
  std::string pinned_commit = {};  // commit that the pinned baseline must be from; empty: any
  OnNotRun on_not_run = OnNotRun::kFail;  // for cases that only engine logs name
  ExpectedCases expected = {};
};

// Parses kvtool.gate-config/1, which is JSON with // comments. Paths in it are relative to
// `folder`. A case's own rules, if any, are its only ones; otherwise those of "defaults" apply, or
// else the engine's for its name and mode. A config without cases takes them from engine logs, and
// must then give "expected_cases". Throws kConfig for an unknown key, metric or parameter, and
// names the nearest known one.
Config ParseConfig(std::string_view text, const std::filesystem::path& folder,
                   const Engine& engine);

// Returns a config with one case of mode compare.
Config CompareConfig(const std::string& snapshot, const std::string& reference,
                     const Engine& engine);

// Returns a config with all suite cases of the first engine over one snapshot. Cases that only the
// engine can run do not fail the gate.
Config SuiteConfig(const std::string& snapshot, const std::string& trace, const Engine& engine);

// Returns the first engine's rules on the permitted change of figures from a baseline's.
std::vector<DeltaRule> DefaultBaselineRules(const Engine& engine);

// Parses a rule from the command line, such as "loss.mean_kl<=0.01". The rule fails if its figure
// is unknown (Rule::required). Throws kConfig.
Rule ParseRule(std::string_view text, const Engine& engine);

// Keeps only the cases with these names. Throws kUsage if a name has no case.
void KeepCases(const std::vector<std::string>& names, Config& config);

// Writes a config for users with runs but without thresholds. Every limit is a figure measured on
// the run itself, less a margin for the figure's noise; the config explains both. So the gate
// passes on the same data, and fails on data that are clearly worse.

// DataSize is the size of the recorded data, which cases have to fit.
struct DataSize {
  uint64_t layers = 0, prompt_tokens = 0, tokens = 0;  // `tokens` counts the whole cache's
  bool has_attention = false;                          // queries or probabilities were recorded
};

// A case without rules, with parameters that fit some data, and a sentence about its purpose.
struct SizedCase {
  CaseSpec spec;
  std::string_view question;
};

// One case of a run. The first sample is the case of the config; the others move the end of the
// prompt, so that the figures cover other tokens.
struct MeasuredCase {
  SizedCase sized;
  std::vector<CaseResult> samples;
};

struct MeasuredRun {
  std::string name;             // name of the run; names of cases begin with it
  std::string snapshot, trace;  // as the config gives them
  Reading reading;
  std::string kind;  // runs of one kind repeat one setting, and so show its noise
  bool has_attention = false;
  std::vector<MeasuredCase> cases;
};

// Returns the end of the prompt in each sample; the first is the run's own.
std::vector<uint64_t> SamplePrompts(const DataSize& size);

// Returns kvtool.gate-config/1 with comments. `made_by` is in its first line. The list must not be
// empty.
std::string FirstConfig(std::span<const MeasuredRun> runs, const Engine& engine,
                        std::string_view made_by);

// A rule for a first config, and how its limit was computed.
struct SizedRule {
  Rule rule;
  std::string remark;
};

// Sizes the rules of one case to the measured figures. `recordings` are this case in every run of
// the same kind, this one first. Unknown figures get no rule.
std::vector<SizedRule> SizeRules(std::span<const MeasuredCase* const> recordings);

}  // namespace kv::gate
