// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/study/gate/config.h"
#include "lib/study/gate/result.h"

namespace kv::gate {

struct JudgeOptions {
  std::vector<DeltaRule> baseline_rules = {};
  bool strict = false;            // whatever was not decided fails: rules and cases
  bool lenient_baseline = false;  // what is wrong with the baseline only warns
  bool partial = false;           // cases were left out on purpose
  ExpectedCases expected = {};
};

// Evaluates the rules of every case, those against the baseline included, and sets each status:
// failed by any rule, inconclusive by any, passed by a rule that somebody asked for, else not run.
// Outcomes that a case already has, those of engine logs, count too. What keeps the gate from
// passing beyond failed cases goes into `reasons`: a case that was not decided, unless it only
// warns; an expected one that is not there; a baseline that failed itself, is empty, of another
// snapshot, or knows cases that this run does not; a gate that decided nothing.
void Judge(const JudgeOptions& options, GateResult& result);

}  // namespace kv::gate
