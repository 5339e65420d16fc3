// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/study/gate/result.h"

namespace kv::gate {

// Quotes a word for a shell if it needs that.
std::string ShellWord(const std::string& word);

// Gives every failed or inconclusive rule the command that runs its case again. `command` has the
// words of this run without its outputs, such as "kvtool", "gate", "gate.json".
void AddReproduction(const std::vector<std::string>& command, GateResult& result);

// The rule that a reader should see first: the first that failed, else the first inconclusive one,
// else the one that passed most narrowly. Null if no rule has a margin.
const RuleOutcome* DecidingRule(const CaseResult& result);

}  // namespace kv::gate
