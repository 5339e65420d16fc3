// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/logs.h"

#include <algorithm>

namespace kv::gate {

std::optional<CaseResult> TakeCase(const CaseSpec& spec, std::vector<CaseResult>& of_logs) {
  const auto found = std::find_if(of_logs.begin(), of_logs.end(), [&](const CaseResult& item) {
    return item.spec.name == spec.name;
  });
  if (found == of_logs.end()) return std::nullopt;
  CaseResult result = std::move(*found);
  of_logs.erase(found);
  result.spec.on_not_run = spec.on_not_run;
  if (!spec.own_rules) return result;
  // Thresholds are the config's; what fails a case whatever its figures say is no threshold.
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

}  // namespace kv::gate
