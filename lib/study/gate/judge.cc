// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "lib/core/base/bytes.h"
#include "lib/study/gate/baseline.h"

namespace kv::gate {
namespace {

bool IsPinned(const GateResult& gate, const Baseline& baseline) {
  return gate.pinned && &baseline == &*gate.pinned;
}

// Measured then, unknown now. Figures of an engine's run and of a replay are not the same ones.
bool WasMeasured(const Engine& engine, const BaselineCase& older, const CaseResult& result,
                 const RuleOutcome& rule) {
  const MetricInfo* info = engine.FindMetric(rule.rule.metric);
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
    if (lenient || !WasMeasured(*gate.engine, older->second, result, rule)) continue;
    rule.status = Status::kFail;
    rule.baseline = older->second.figures.find(rule.rule.metric)->second;
    rule.pinned = IsPinned(gate, baseline);
    rule.reason = "no longer measured: " + rule.reason;
  }
  std::move(deltas.begin(), deltas.end(), std::back_inserter(result.rules));
}

void CheckCases(const JudgeOptions& options, Baseline& baseline, GateResult& gate) {
  std::vector<std::string> hashless;
  for (const auto& [name, older] : baseline.cases) {
    const auto now = std::find_if(
        gate.cases.begin(), gate.cases.end(),
        [&, &wanted = name](const CaseResult& item) { return item.spec.name == wanted; });
    if (now == gate.cases.end()) {
      if (options.partial) continue;
      baseline.missing_cases.push_back(name);
      baseline.problems.push_back(fmt::format("case '{}' is not in this run", Escaped(name)));
    } else if (now->status == Status::kNotRun && older.passed) {
      baseline.problems.push_back(
          fmt::format("case '{}' passed in it, but was not run now", Escaped(name)));
    } else if (const std::string other = OtherData(options, older, *now); !other.empty()) {
      baseline.problems.push_back(fmt::format("case '{}' {}", Escaped(name), other));
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
void RequireCompared(const JudgeOptions& options, const GateResult& gate, Baseline& baseline) {
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
    baseline.problems.emplace_back(
        "nothing was compared with it: no case has a figure in both that "
        "a rule on baselines names");
    return;
  }
  for (const DeltaRule& rule : rules) {
    if (!rule.is_asked || options.partial || compared.contains(rule.metric)) continue;
    baseline.problems.push_back(fmt::format(
        "its rule on {} compared nothing: no case has the figure in both runs", rule.metric));
  }
}

// Lists the parameters and lengths of a replay that differ from those of the older run.
std::string OtherSettings(const BaselineCase& older, const CaseResult& result) {
  std::map<std::string, std::string> now;
  for (const auto& [name, value] : result.spec.params) {
    const auto* number = std::get_if<double>(&value);
    now[name] =
        ToJson(number != nullptr ? FigureValue(*number, false) : std::get<std::string>(value))
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

void CheckBaseline(const JudgeOptions& options, Baseline& baseline, GateResult& gate) {
  const bool is_pinned = IsPinned(gate, baseline);
  if (baseline.cases.empty()) {
    baseline.problems.emplace_back("it has no cases");
  } else if (!baseline.passed) {
    baseline.problems.emplace_back("it did not pass itself");
  }
  if (is_pinned && !options.pinned_commit.empty() &&
      !baseline.commit.starts_with(options.pinned_commit)) {
    baseline.problems.push_back(
        fmt::format("it is of commit {}, but pinned_commit is {}",
                    baseline.commit.empty() ? "nobody knows which" : Escaped(baseline.commit),
                    Escaped(options.pinned_commit)));
  }
  CheckCases(options, baseline, gate);
  if (!baseline.cases.empty()) RequireCompared(options, gate, baseline);
  AddDoubts(options, baseline, gate);
  const bool lenient = options.lenient_baseline;
  if (lenient) {
    for (const CaseResult& item : gate.cases) AddUnmeasured(item, is_pinned, baseline.problems);
  }
  for (const std::string& problem : baseline.problems) {
    (lenient ? gate.warnings : gate.reasons)
        .push_back(fmt::format("{} {}: {}", is_pinned ? "pinned baseline" : "baseline",
                               Escaped(baseline.file), problem));
  }
}

void AddBaselineRules(const JudgeOptions& options, const GateResult& gate, CaseResult& result) {
  const bool lenient = options.lenient_baseline;
  if (gate.baseline) AddRulesOf(*gate.baseline, options.baseline_rules, lenient, gate, result);
  if (gate.pinned) AddRulesOf(*gate.pinned, options.pinned_rules, lenient, gate, result);
}

void JudgeBaselines(const JudgeOptions& options, GateResult& gate) {
  if (gate.baseline) CheckBaseline(options, *gate.baseline, gate);
  if (gate.pinned) CheckBaseline(options, *gate.pinned, gate);
}

bool Has(const CaseResult& result, Status status) {
  return std::any_of(result.rules.begin(), result.rules.end(),
                     [&](const RuleOutcome& rule) { return rule.status == status; });
}

// What nobody could decide is not good enough.
void Tighten(CaseResult& result) {
  for (RuleOutcome& rule : result.rules) {
    if (rule.status != Status::kNotRun && rule.status != Status::kInconclusive) continue;
    rule.reason =
        fmt::format("--strict: {}: {}", rule.status == Status::kNotRun ? "not run" : "inconclusive",
                    rule.reason.empty() ? "not measured" : rule.reason);
    rule.status = Status::kFail;
  }
}

// Passed by nothing but rules that no config asked for: that proves little, and not what was meant.
bool RestsOnImplied(const CaseResult& result) {
  const auto asked = [](const RuleOutcome& rule) {
    return rule.status == Status::kPass && !rule.rule.implied;
  };
  return std::none_of(result.rules.begin(), result.rules.end(), asked);
}

std::string WhyNotRun(const CaseResult& result) {
  if (result.rules.empty()) return "the case has no rules";
  std::string implied;
  const RuleOutcome* open = nullptr;
  for (const RuleOutcome& rule : result.rules) {
    if (rule.status == Status::kPass) implied += (implied.empty() ? "" : ", ") + rule.rule.shown();
    if (rule.status == Status::kNotRun && open == nullptr) open = &rule;
  }
  std::string text = open == nullptr ? "" : open->reason;
  if (implied.empty()) return text;
  return fmt::format("only rules that every case has were decided: {}{}{}", implied,
                     text.empty() ? "" : "; ", text);
}

// A difference that equal runs of the engine show as well breaks no rule.
void MindNoise(const CaseResult& result, RuleOutcome& rule) {
  const Measurement* measured = result.measured.Find(rule.rule.metric);
  if (measured == nullptr || !measured->noise || rule.status != Status::kFail || !rule.value)
    return;
  const double width = *measured->noise;
  if (!Holds(*rule.value - width, rule.rule.op, rule.rule.limit)) return;
  rule.status = Status::kInconclusive;
  rule.reason = fmt::format(
      "the baselines differ by {:.1f}% without any change; more repeats of the baseline and of the "
      "case would decide",
      100 * width);
}

void Conclude(CaseResult& result) {
  // Engine logs may fail a case by what is no rule: a return code, a missing report.
  const std::string stated = result.reason;
  const bool failed_before = result.status == Status::kFail;
  result.status = failed_before || Has(result, Status::kFail) ? Status::kFail
                  : Has(result, Status::kInconclusive)        ? Status::kInconclusive
                  : RestsOnImplied(result)                    ? Status::kNotRun
                                                              : Status::kPass;
  const Status decided_by = result.status;
  const RuleOutcome* rule = result.first(decided_by);
  if (decided_by == Status::kNotRun) {
    if (result.reason.empty()) result.reason = WhyNotRun(result);
  } else if (decided_by != Status::kPass && rule != nullptr) {
    result.reason = Text(*rule);
    if (rule->where.known()) result.reason += " at " + Text(rule->where);
    if (!rule->reason.empty()) result.reason += ": " + rule->reason;
    if (result.logs && !stated.empty()) result.reason = stated;
  }
}

// What no number is fails whatever the rules are, unless one of them speaks of it.
void RequireFinite(CaseResult& result) {
  const std::string metric = "content.not_finite";
  if (result.measured.Value(metric).value_or(0) == 0) return;
  const bool is_named = std::any_of(result.spec.rules.begin(), result.spec.rules.end(),
                                    [&](const Rule& rule) { return rule.metric == metric; });
  if (is_named) return;
  result.rules.push_back(Evaluate({metric, Op::kAtMost, 0, false, true}, result.measured));
}

// The clock of a replay is this machine's, with whatever else runs on it: a suite's thresholds on
// the times of an engine say nothing about it, and a rule that a config gives is asked for.
void LeaveTimesOpen(const GateResult& gate, const CaseResult& result, RuleOutcome& rule) {
  if (result.origin != Origin::kReplay || result.spec.own_rules || !rule.value) return;
  const MetricInfo* info = gate.engine->FindMetric(rule.rule.metric);
  if (info == nullptr || info->needs != Needs::kClock) return;
  rule.status = Status::kNotRun;
  rule.reason = "a time of this machine, not of the engine: a config's own rule judges it";
}

void JudgeCase(const GateResult& gate, const JudgeOptions& options, CaseResult& result) {
  for (const Rule& rule : result.spec.rules) {
    if (result.origin != Origin::kNone) {
      result.rules.push_back(Evaluate(rule, result.measured, &result.noise));
      MindNoise(result, result.rules.back());
      LeaveTimesOpen(gate, result, result.rules.back());
      continue;
    }
    RuleOutcome outcome;
    outcome.rule = rule;
    outcome.reason = result.reason;
    if (rule.required) outcome.status = Status::kFail;
    result.rules.push_back(std::move(outcome));
  }
  RequireFinite(result);
  if (result.origin != Origin::kNone) AddBaselineRules(options, gate, result);
  if (options.strict) Tighten(result);
  Conclude(result);
}

void RequireDecided(bool strict, GateResult& gate) {
  for (const CaseResult& item : gate.cases) {
    if (item.status == Status::kPass || item.status == Status::kFail) continue;
    std::string text = fmt::format(
        "case '{}' {}: {}", Escaped(item.spec.name),
        item.status == Status::kNotRun ? "was not run" : "is inconclusive", item.reason);
    const bool fails = strict || item.spec.on_not_run == OnNotRun::kFail;
    (fails ? gate.reasons : gate.warnings).push_back(std::move(text));
  }
}

void RequireExpected(const ExpectedCases& expected, GateResult& gate) {
  const auto is_decided = [](const CaseResult& item) {
    return item.status == Status::kPass || item.status == Status::kFail;
  };
  for (const std::string& name : expected.names) {
    const auto found = std::find_if(gate.cases.begin(), gate.cases.end(),
                                    [&](const CaseResult& item) { return item.spec.name == name; });
    if (found == gate.cases.end()) {
      gate.reasons.push_back(
          fmt::format("expected_cases: there is no case '{}' in this run", Escaped(name)));
    } else if (!is_decided(*found) && found->spec.on_not_run == OnNotRun::kWarn) {
      gate.reasons.push_back(fmt::format("expected_cases: case '{}' was not decided: {}",
                                         Escaped(name), found->reason));
    }
  }
  const auto decided =
      static_cast<uint64_t>(std::count_if(gate.cases.begin(), gate.cases.end(), is_decided));
  if (expected.count && decided < *expected.count) {
    gate.reasons.push_back(
        fmt::format("expected_cases: {} were to be decided, {} were", *expected.count, decided));
  }
}

}  // namespace

void Judge(const JudgeOptions& options, GateResult& result) {
  for (CaseResult& item : result.cases) JudgeCase(result, options, item);
  JudgeBaselines(options, result);
  RequireDecided(options.strict, result);
  if (!options.partial) RequireExpected(options.expected, result);
  if (result.count(Status::kNotRun) == result.cases.size()) {
    result.reasons.insert(result.reasons.begin(),
                          "no case was decided: nothing that a rule asks for was measured");
  }
}

}  // namespace kv::gate
