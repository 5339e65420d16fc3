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

// How far a figure may move from an older run's, as a share of the older value.
struct DeltaRule {
  std::string_view metric;
  std::optional<double> max_drop, max_rise;
  bool is_flag = false;  // the metric is true (1) or false (0)
};

struct BaselineCase {
  std::map<std::string, double, std::less<>> figures;  // those that were unknown are absent
  std::string origin;                                  // "replay"; empty: it does not say
  bool passed = false, failed = false;
  std::vector<std::string> snapshot_hashes;  // as the older run gives them, once or twice
};

// What an older summary.json says.
struct Baseline {
  std::string file;
  std::string generated_at, verdict;
  bool is_ours = false;  // kvtool's, not the original's
  bool passed = false;   // as a whole, and no case of it failed
  std::map<std::string, BaselineCase, std::less<>> cases;
};

// Reads kvtool.gate/1, and the original's summary.json, whose rows have the same keys. Throws
// kBadText, kBadField.
Baseline ParseBaseline(std::string_view text, std::string file, Engines engines);

// One outcome per rule whose figure the older run has for this case: a figure that is no longer
// measured fails.
std::vector<RuleOutcome> CompareWithBaseline(const Baseline& baseline, const std::string& name,
                                             const std::vector<DeltaRule>& rules,
                                             const Measurements& measured);

}  // namespace kv::gate
