// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/result.h"

#include <algorithm>

#include "lib/core/base/utf8.h"

namespace kv::gate {

std::string_view Name(Origin origin) {
  return origin == Origin::kReplay    ? "replay"
         : origin == Origin::kLogs    ? "engine_logs"
         : origin == Origin::kCompare ? "compare"
                                      : "none";
}

const RuleOutcome* CaseResult::first(Status status) const {
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [&](const RuleOutcome& rule) { return rule.status == status; });
  return found == rules.end() ? nullptr : &*found;
}

uint64_t GateResult::count(Status status) const {
  return static_cast<uint64_t>(
      std::count_if(cases.begin(), cases.end(),
                    [&](const CaseResult& result) { return result.status == status; }));
}

uint64_t GateResult::count(const SuiteInfo& suite) const {
  return static_cast<uint64_t>(
      std::count_if(cases.begin(), cases.end(),
                    [&](const CaseResult& result) { return result.spec.suite == suite.name; }));
}

const Noise* GateResult::worst_noise() const {
  const Noise* worst = nullptr;
  for (const CaseResult& item : cases) {
    const std::optional<double> relative = item.noise.relative();
    if (relative && (worst == nullptr || *relative > *worst->relative())) worst = &item.noise;
  }
  return worst;
}

std::string_view GateResult::verdict() const {
  return failed() ? "fail" : passed() ? "pass" : "inconclusive";
}

std::string GateResult::reason() const {
  std::string text;
  for (const std::string& one : reasons) text += (text.empty() ? "" : "; ") + one;
  return text;
}

CaseResult NotRun(CaseSpec spec, std::string reason) {
  CaseResult result;
  result.spec = std::move(spec);
  result.reason = std::move(reason);
  return result;
}

std::optional<CaseResult> TakeCase(const CaseSpec& spec, std::vector<CaseResult>& of_logs) {
  const auto found = std::find_if(of_logs.begin(), of_logs.end(), [&](const CaseResult& item) {
    return item.spec.name == spec.name;
  });
  if (found == of_logs.end()) return std::nullopt;
  CaseResult result = std::move(*found);
  of_logs.erase(found);
  result.spec.on_not_run = spec.on_not_run;
  if (!spec.own_rules) return result;
  // Thresholds are those of the config; faults that fail a case regardless of figures have none.
  result.spec.rules = spec.rules;
  std::erase_if(result.spec.rules, [](const Rule& rule) { return rule.implied; });
  std::erase_if(result.rules, [](const RuleOutcome& outcome) { return !outcome.rule.implied; });
  result.status = Status::kNotRun;
  result.reason.clear();
  return result;
}

void AddFromLogs(const CaseSpec& spec, std::string_view path, std::vector<CaseResult>& of_logs,
                 CaseResult& replayed) {
  std::optional<CaseResult> taken = TakeCase(spec, of_logs);
  if (!taken) return;
  for (RuleOutcome& outcome : taken->rules) {
    if (outcome.where.log.empty()) outcome.where.log = path;
    replayed.rules.push_back(std::move(outcome));
  }
}

std::string ShellLine(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + ShellQuoted(word);
  return line;
}

void AddReproduction(const std::vector<std::string>& command, GateResult& result) {
  const std::string line = ShellLine(command);
  for (CaseResult& item : result.cases) {
    for (RuleOutcome& rule : item.rules) {
      if (rule.status != Status::kFail && rule.status != Status::kInconclusive) continue;
      rule.reproduce = line + " --case " + ShellQuoted(item.spec.name);
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
