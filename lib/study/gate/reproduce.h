// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/study/gate/result.h"

namespace kv::gate {

// A word as a shell reads it back.
std::string ShellWord(const std::string& word);

// Gives every failed rule the command that runs its case again: the words of this run without its
// outputs ("kvtool", "gate", "gate.json"), with --case.
void AddReproduction(const std::vector<std::string>& command, GateResult& result);

// The rule that a reader should see: the first that failed, else the one passed most narrowly.
const RuleOutcome* DecidingRule(const CaseResult& result);

}  // namespace kv::gate
