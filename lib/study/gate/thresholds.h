// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/study/gate/first_config.h"

namespace kv::gate {

// A rule for a first config, and how its limit was found.
struct SizedRule {
  Rule rule;
  std::string remark;
};

// Sizes the rules of one case to what was measured. `recordings` are this case in every run of the
// same kind, this one first. Figures that are not known have no rule.
std::vector<SizedRule> SizeRules(std::span<const MeasuredCase* const> recordings);

}  // namespace kv::gate
