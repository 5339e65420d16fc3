// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/judge_baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "lib/core/base/bytes.h"
#include "lib/study/gate/engine.h"

namespace kv::gate {
namespace {

bool IsPinned(const GateResult& gate, const Baseline& baseline) {
  return gate.pinned && &baseline == &*gate.pinned;
}

// Measured then, unknown now. Figures of an engine's run and of a replay are not the same ones.
bool WasMeasured(Engines engines, const BaselineCase& older, const CaseResult& result,
                 const RuleOutcome& rule) {
  const MetricInfo* info = FindMetric(engines, rule.rule.metric);
  return rule.status == Status::kNotRun && !rule.value && !rule.baseline && info != nullptr &&
         info->needs != Needs::kClock && older.origin == Name(result.origin) &&
         older.figures.find(rule.rule.metric) != older.figures.end();
}

std::string OtherSnapshot(const BaselineCase& older, const CaseResult& result) {
  if (result.snapshot_hash.empty()) return {};
  if (older.snapshot_hashes.empty()) return "does not say of which snapshot it was";
  for (const std::string& hash : older.snapshot_hashes) {
    if (hash == result.snapshot_hash) continue;
    return fmt::format("was of another snapshot: xxh3 {}, now {}", Escaped(hash),
                       result.snapshot_hash);
  }
  return {};
}

// Figures of attention come from the trace: another one over the same cache gives others.
std::string OtherTrace(const BaselineCase& older, const CaseResult& result) {
  if (older.origin != Name(Origin::kReplay) || result.origin != Origin::kReplay) return {};
  if (!older.states_trace || older.trace_hash == result.trace_hash) return {};
  if (older.trace_hash.empty()) return "had no trace, and has one now";
  if (result.trace_hash.empty()) return "had a trace, and has none now";
  return fmt::format("was of another trace: xxh3 {}, now {}", Escaped(older.trace_hash),
                     result.trace_hash);
}

std::string OtherData(const JudgeOptions& options, const BaselineCase& older,
                      const CaseResult& result) {
  if (options.new_recordings) return {};
  const std::string snapshot = OtherSnapshot(older, result);
  return snapshot.empty() ? OtherTrace(older, result) : snapshot;
}

// Programs before 0.2 did not write the hash: the next baseline will have it.
bool LacksTraceHash(const JudgeOptions& options, const Baseline& baseline,
                    const BaselineCase& older, const CaseResult& result) {
  return baseline.is_ours && !options.new_recordings && !older.states_trace &&
         !result.trace_hash.empty();
}

// Where nothing fails by them.
void AddUnmeasured(const CaseResult& result, bool of_pinned, std::vector<std::string>& problems) {
  for (const RuleOutcome& rule : result.rules) {
    if (!rule.baseline || rule.value || rule.pinned != of_pinned) continue;
    problems.push_back(fmt::format("case '{}': {} was {}, {}", Escaped(result.spec.name),
                                   rule.rule.metric, NumberText(*rule.baseline), rule.reason));
  }
}

void AddRulesOf(const Baseline& baseline, const std::vector<DeltaRule>& rules, bool lenient,
                const GateResult& gate, CaseResult& result) {
  const auto older = baseline.cases.find(result.spec.name);
  if (older == baseline.cases.end()) return;
  std::vector<RuleOutcome> deltas =
      CompareWithBaseline(baseline, result.spec.name, rules, result.measured);
  for (RuleOutcome& rule : deltas) {
    if (!rule.value && lenient) rule.status = Status::kNotRun;
    rule.pinned = IsPinned(gate, baseline);
  }
  for (RuleOutcome& rule : result.rules) {
    if (lenient || !WasMeasured(gate.engines, older->second, result, rule)) continue;
    rule.status = Status::kFail;
    rule.baseline = older->second.figures.find(rule.rule.metric)->second;
    rule.pinned = IsPinned(gate, baseline);
    rule.reason = "no longer measured: " + rule.reason;
  }
  std::move(deltas.begin(), deltas.end(), std::back_inserter(result.rules));
}

void CheckCases(const JudgeOptions& options, const Baseline& baseline, GateResult& gate,
                BaselineFindings& found) {
  std::vector<std::string> hashless;
  for (const auto& [name, older] : baseline.cases) {
    const auto now = std::find_if(
        gate.cases.begin(), gate.cases.end(),
        [&, &wanted = name](const CaseResult& item) { return item.spec.name == wanted; });
    if (now == gate.cases.end()) {
      if (options.partial) continue;
      found.missing_cases.push_back(name);
      found.problems.push_back(fmt::format("case '{}' is not in this run", Escaped(name)));
    } else if (now->status == Status::kNotRun && older.passed) {
      found.problems.push_back(
          fmt::format("case '{}' passed in it, but was not run now", Escaped(name)));
    } else if (const std::string other = OtherData(options, older, *now); !other.empty()) {
      found.problems.push_back(fmt::format("case '{}' {}", Escaped(name), other));
    } else if (LacksTraceHash(options, baseline, older, *now)) {
      hashless.push_back(Escaped(name));
    }
  }
  if (hashless.empty()) return;
  gate.warnings.push_back(fmt::format(
      "baseline {} does not say of which trace it was, as newer ones do: its figures of attention "
      "may be of another one (case{} {})",
      Escaped(baseline.file), hashless.size() == 1 ? "" : "s", fmt::join(hashless, ", ")));
}

// Finds a baseline of which nothing at all was compared, and rules of the config whose figure no
// case has in both runs.
void RequireCompared(const JudgeOptions& options, const Baseline& baseline, const GateResult& gate,
                     BaselineFindings& found) {
  const bool is_pinned = IsPinned(gate, baseline);
  const std::vector<DeltaRule>& rules = is_pinned ? options.pinned_rules : options.baseline_rules;
  if (rules.empty()) return;
  std::set<std::string_view> compared;
  for (const CaseResult& item : gate.cases) {
    for (const RuleOutcome& rule : item.rules) {
      if (rule.baseline && rule.pinned == is_pinned) compared.insert(rule.rule.metric);
    }
  }
  if (compared.empty()) {
    found.problems.emplace_back(
        "nothing was compared with it: no case has a figure in both that "
        "a rule on baselines names");
    return;
  }
  for (const DeltaRule& rule : rules) {
    if (!rule.is_asked || options.partial || compared.contains(rule.metric)) continue;
    found.problems.push_back(fmt::format(
        "its rule on {} compared nothing: no case has the figure in both runs", rule.metric));
  }
}

// Lists the parameters and lengths of a replay that differ from those of the older run.
std::string OtherSettings(const BaselineCase& older, const CaseResult& result) {
  std::map<std::string, std::string> now;
  for (const auto& [name, value] : result.spec.params) {
    const auto* number = std::get_if<double>(&value);
    now[name] =
        (number != nullptr ? FigureJson(*number, false) : Json(std::get<std::string>(value)))
            .dump();
  }
  const auto add = [&](const char* key, uint64_t tokens) {
    std::string& lengths = now[key];
    lengths += (lengths.empty() ? "" : ",") + std::to_string(tokens);
  };
  for (const RowFigures& row : result.rows) {
    add("prompt_tokens", row.prompt_tokens);
    add("decode_tokens", row.decode_tokens);
  }
  std::string text;
  for (const auto& [name, value] : older.settings) {
    const auto found = now.find(name);
    if (found == now.end() || found->second == value) continue;
    text += fmt::format("{}{} was {}, is {}", text.empty() ? "" : ", ", name, Escaped(value),
                        found->second);
  }
  return text;
}

// Warns of comparisons that may not mean what a reader takes them for. Cases that the baseline
// lacks fail with --strict.
void AddDoubts(const JudgeOptions& options, const Baseline& baseline, GateResult& gate) {
  const std::string name = fmt::format(
      "{} {}: ", IsPinned(gate, baseline) ? "pinned baseline" : "baseline", Escaped(baseline.file));
  if (baseline.is_ours && baseline.version != options.version) {
    gate.warnings.push_back(fmt::format(
        "{}it was made by kvtool {}, this is {}: a difference may be the program's", name,
        baseline.version.empty() ? "of an unknown version" : Escaped(baseline.version),
        options.version));
  }
  std::vector<std::string> unknown;
  bool replays = false;
  for (const CaseResult& item : gate.cases) {
    if (item.origin == Origin::kNone) continue;
    replays |= item.origin == Origin::kReplay;
    const auto older = baseline.cases.find(item.spec.name);
    if (older == baseline.cases.end()) {
      unknown.push_back(Escaped(item.spec.name));
    } else if (const std::string other = OtherSettings(older->second, item); !other.empty()) {
      gate.warnings.push_back(fmt::format("{}case '{}' ran with other settings: {}", name,
                                          Escaped(item.spec.name), other));
    }
  }
  if (!baseline.is_ours && replays) {
    gate.warnings.push_back(name +
                            "it is an engine's own summary: figures of its runs are compared "
                            "with those of a replay");
  }
  if (unknown.empty() || baseline.cases.empty()) return;
  const bool fails = options.strict && !options.lenient_baseline;
  (fails ? gate.reasons : gate.warnings)
      .push_back(fmt::format("{}it has no case {}: nothing of {} was compared", name,
                             fmt::join(unknown, ", "), unknown.size() == 1 ? "it" : "them"));
}

void CheckBaseline(const JudgeOptions& options, const Baseline& baseline, GateResult& gate,
                   BaselineFindings& found) {
  const bool is_pinned = IsPinned(gate, baseline);
  if (baseline.cases.empty()) {
    found.problems.emplace_back("it has no cases");
  } else if (!baseline.passed) {
    found.problems.emplace_back("it did not pass itself");
  }
  if (is_pinned && !options.pinned_commit.empty() &&
      !baseline.commit.starts_with(options.pinned_commit)) {
    found.problems.push_back(
        fmt::format("it is of commit {}, but pinned_commit is {}",
                    baseline.commit.empty() ? "nobody knows which" : Escaped(baseline.commit),
                    Escaped(options.pinned_commit)));
  }
  CheckCases(options, baseline, gate, found);
  if (!baseline.cases.empty()) RequireCompared(options, baseline, gate, found);
  AddDoubts(options, baseline, gate);
  const bool lenient = options.lenient_baseline;
  if (lenient) {
    for (const CaseResult& item : gate.cases) AddUnmeasured(item, is_pinned, found.problems);
  }
  for (const std::string& problem : found.problems) {
    (lenient ? gate.warnings : gate.reasons)
        .push_back(fmt::format("{} {}: {}", is_pinned ? "pinned baseline" : "baseline",
                               Escaped(baseline.file), problem));
  }
}

}  // namespace

void AddBaselineRules(const JudgeOptions& options, const GateResult& gate, CaseResult& result) {
  const bool lenient = options.lenient_baseline;
  if (gate.baseline) AddRulesOf(*gate.baseline, options.baseline_rules, lenient, gate, result);
  if (gate.pinned) AddRulesOf(*gate.pinned, options.pinned_rules, lenient, gate, result);
}

void JudgeBaselines(const JudgeOptions& options, GateResult& gate) {
  if (gate.baseline) CheckBaseline(options, *gate.baseline, gate, gate.of_baseline);
  if (gate.pinned) CheckBaseline(options, *gate.pinned, gate, gate.of_pinned);
}

}  // namespace kv::gate
