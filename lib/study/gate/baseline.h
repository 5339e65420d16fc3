// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/cases.h"

namespace kv::gate {

// How far a figure may move from its value in an older run, as a share of that value.
struct DeltaRule {
  std::string_view metric;
  std::optional<double> max_drop, max_rise;
  bool is_flag = false;   // the metric is true (1) or false (0)
  bool is_asked = false;  // by a config: it must compare something
};

struct BaselineCase {
  std::map<std::string, double, std::less<>> figures;  // without those that were unknown
  std::string origin;                                  // such as "replay"; empty if not stated
  bool passed = false, failed = false;
  std::vector<std::string> snapshot_hashes;  // the older run may state one, or the same twice
  bool states_trace = false;  // whether it says which trace it was of, or that it had none
  std::string trace_hash;     // empty without a trace
  // Parameters and lengths that a replay ran with, as JSON texts.
  std::map<std::string, std::string> settings;
};

// An older summary.json, as far as this run is compared with it.
struct Baseline {
  std::string file;
  std::string generated_at, verdict, commit, version;
  bool is_ours = false;  // written by kvtool, not by the engine's suite
  bool passed = false;   // the summary says so, and no case of it failed
  std::map<std::string, BaselineCase, std::less<>> cases;
};

// Reads kvtool.gate/1 and the summary.json of an engine's suite, whose rows have the same keys.
// Throws kBadText, kBadField.
Baseline ParseBaseline(std::string_view text, std::string file, Engines engines);

// Returns one outcome per rule whose figure the older run has for this case. A figure that is no
// longer measured fails.
std::vector<RuleOutcome> CompareWithBaseline(const Baseline& baseline, const std::string& name,
                                             const std::vector<DeltaRule>& rules,
                                             const Measurements& measured);

}  // namespace kv::gate
