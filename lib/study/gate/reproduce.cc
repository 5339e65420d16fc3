// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/reproduce.h"

#include <algorithm>

namespace kv::gate {

std::string ShellWord(const std::string& word) {
  constexpr std::string_view kPlain = "_-+=./,:@%";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kPlain.find(c) != kPlain.npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

void AddReproduction(const std::vector<std::string>& command, GateResult& result) {
  std::string line;
  for (const std::string& word : command) line += (line.empty() ? "" : " ") + ShellWord(word);
  for (CaseResult& item : result.cases) {
    for (RuleOutcome& rule : item.rules) {
      if (rule.status != Status::kFail && rule.status != Status::kInconclusive) continue;
      rule.reproduce = line + " --case " + ShellWord(item.spec.name);
    }
  }
}

const RuleOutcome* DecidingRule(const CaseResult& result) {
  if (const RuleOutcome* failure = result.first_failure()) return failure;
  if (const RuleOutcome* open = result.first(Status::kInconclusive)) return open;
  const RuleOutcome* closest = nullptr;
  for (const RuleOutcome& rule : result.rules) {
    if (rule.status != Status::kPass || !rule.margin) continue;
    if (closest == nullptr || rule.slack() < closest->slack()) closest = &rule;
  }
  return closest;
}

}  // namespace kv::gate
