// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/judge_baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lib/core/base/bytes.h"
#include "lib/study/gate/engine.h"

namespace kv::gate {
namespace {

// Measured then, unknown now. Figures of an engine's run and of a replay are not the same ones.
bool WasMeasured(Engines engines, const BaselineCase& older, const CaseResult& result,
                 const RuleOutcome& rule) {
  const MetricInfo* info = FindMetric(engines, rule.rule.metric);
  return rule.status == Status::kNotRun && !rule.value && !rule.baseline && info != nullptr &&
         info->needs != Needs::kClock && older.origin == Name(result.origin) &&
         older.figures.find(rule.rule.metric) != older.figures.end();
}

std::string OtherSnapshot(const BaselineCase& older, const CaseResult& result, bool is_ours) {
  if (result.snapshot_hash.empty() || !is_ours) return {};
  if (older.snapshot_hashes.empty()) return "does not say of which snapshot it was";
  for (const std::string& hash : older.snapshot_hashes) {
    if (hash == result.snapshot_hash) continue;
    return fmt::format("was of another snapshot: xxh3 {}, now {}", Escaped(hash),
                       result.snapshot_hash);
  }
  return {};
}

// Where nothing fails by them.
void AddUnmeasured(const CaseResult& result, std::vector<std::string>& problems) {
  for (const RuleOutcome& rule : result.rules) {
    if (!rule.baseline || rule.value) continue;
    problems.push_back(fmt::format("case '{}': {} was {}, {}", Escaped(result.spec.name),
                                   rule.rule.metric, NumberText(*rule.baseline), rule.reason));
  }
}

}  // namespace

void AddBaselineRules(const JudgeOptions& options, const GateResult& gate, CaseResult& result) {
  const Baseline& baseline = *gate.baseline;
  const auto older = baseline.cases.find(result.spec.name);
  if (older == baseline.cases.end()) return;
  std::vector<RuleOutcome> deltas =
      CompareWithBaseline(baseline, result.spec.name, options.baseline_rules, result.measured);
  for (RuleOutcome& rule : deltas) {
    if (!rule.value && options.lenient_baseline) rule.status = Status::kNotRun;
  }
  for (RuleOutcome& rule : result.rules) {
    if (options.lenient_baseline || !WasMeasured(gate.engines, older->second, result, rule))
      continue;
    rule.status = Status::kFail;
    rule.baseline = older->second.figures.find(rule.rule.metric)->second;
    rule.reason = "no longer measured: " + rule.reason;
  }
  std::move(deltas.begin(), deltas.end(), std::back_inserter(result.rules));
}

void JudgeBaseline(const JudgeOptions& options, GateResult& gate) {
  const Baseline& baseline = *gate.baseline;
  std::vector<std::string>& problems = gate.baseline_problems;
  if (baseline.cases.empty()) {
    problems.emplace_back("it has no cases");
  } else if (!baseline.passed) {
    problems.emplace_back("it did not pass itself");
  }
  for (const auto& [name, older] : baseline.cases) {
    const auto found = std::find_if(
        gate.cases.begin(), gate.cases.end(),
        [&, &wanted = name](const CaseResult& item) { return item.spec.name == wanted; });
    if (found == gate.cases.end()) {
      if (options.partial) continue;
      gate.missing_cases.push_back(name);
      problems.push_back(fmt::format("case '{}' is not in this run", Escaped(name)));
    } else if (found->status == Status::kNotRun && older.passed) {
      problems.push_back(fmt::format("case '{}' passed in it, but was not run now", Escaped(name)));
    } else if (const std::string other = OtherSnapshot(older, *found, baseline.is_ours);
               !other.empty()) {
      problems.push_back(fmt::format("case '{}' {}", Escaped(name), other));
    }
  }
  if (options.lenient_baseline) {
    for (const CaseResult& item : gate.cases) AddUnmeasured(item, problems);
    return;
  }
  for (const std::string& problem : problems) {
    gate.reasons.push_back(fmt::format("baseline {}: {}", Escaped(baseline.file), problem));
  }
}

}  // namespace kv::gate
