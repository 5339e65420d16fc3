// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/study/gate/config.h"

namespace kv::gate {

// Reads kvtool.gate/1 and the summary.json of an engine's suite, whose rows have the same keys.
// Throws kBadText, kBadField.
Baseline ParseBaseline(std::string_view text, std::string file, const Engine& engine);

struct JudgeOptions {
  std::vector<DeltaRule> baseline_rules = {}, pinned_rules = {};
  bool strict = false;             // rules and cases that were not decided fail
  bool lenient_baseline = false;   // problems of baselines are only warnings
  bool new_recordings = false;     // the baselines come from other recordings, which is accepted
  std::string version = {};        // version of the program that judges
  std::string pinned_commit = {};  // commit that the pinned baseline must have; empty: any
  bool partial = false;            // some cases were left out on purpose
  bool may_start = false;          // logs that no rule judges pass, as the first baseline
  ExpectedCases expected = {};
};

// Evaluates the rules of every case, including those against the baseline, and sets its status. A
// case fails if any rule fails; else it is inconclusive if any rule is; else it passes if a
// requested rule passes; else it was not run. Outcomes that a case already has, such as those of
// engine logs, count too. Whatever else keeps the gate from passing goes into `reasons`: a case
// that was not decided, unless it only warns; an expected case that is missing; a baseline that
// failed itself, is empty, is of another snapshot, has cases that this run lacks or compares
// nothing; and a gate that decided nothing, unless it starts a baseline.
void Judge(const JudgeOptions& options, GateResult& result);

}  // namespace kv::gate
