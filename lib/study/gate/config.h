// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/baseline.h"
#include "lib/study/gate/cases.h"

namespace kv::gate {

// The cases that a run must decide: by name, or how many at least.
struct ExpectedCases {
  std::vector<std::string> names = {};
  std::optional<uint64_t> count = {};

  bool any() const { return !names.empty() || count; }
};

struct Config {
  std::vector<CaseSpec> cases = {};
  std::vector<DeltaRule> baseline_rules = {};
  OnNotRun on_not_run = OnNotRun::kFail;  // of cases that only engine logs name
  ExpectedCases expected = {};
};

// kvtool.gate-config/1: JSON with // comments. Paths in it are relative to `folder`. A case without
// rules takes those of "defaults", or else the suite's for its name and mode; rules that are given
// stand alone. Without cases, which needs "expected_cases", they are those of engine logs. Unknown
// keys, metrics and parameters throw kConfig with the nearest known one.
Config ParseConfig(std::string_view text, const std::filesystem::path& folder, Engines engines);

// One case of mode compare.
Config CompareConfig(const std::string& snapshot, const std::string& reference, Engines engines);

// All suite cases of the first engine over one snapshot. Those that only the engine can run do not
// fail it.
Config SuiteConfig(const std::string& snapshot, const std::string& trace, Engines engines);

// The first engine's rules on how far figures may move from a baseline's.
std::vector<DeltaRule> DefaultBaselineRules(Engines engines);

// Keeps the cases of these names. Throws kUsage for a name that is none of them.
void KeepCases(const std::vector<std::string>& names, Config& config);

}  // namespace kv::gate
