// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/result.h"

namespace kv::gate {

// Reads kvtool.gate/1 and the summary.json of an engine's suite, whose rows have the same keys.
// Throws kBadText, kBadField.
Baseline ParseBaseline(std::string_view text, std::string file, const Engine& engine);

// Returns one outcome per rule whose figure the older run has for this case. A figure that is no
// longer measured fails.
std::vector<RuleOutcome> CompareWithBaseline(const Baseline& baseline, const std::string& name,
                                             const std::vector<DeltaRule>& rules,
                                             const Measurements& measured);

}  // namespace kv::gate
