// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/json.h"

namespace kv::gate {
namespace {

using Document = nlohmann::json;  // nlohmann's sorted objects find keys fast, whatever their size
using FigureMap = std::map<std::string, double, std::less<>>;

std::string WordOr(const Document& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Turns {"content": {"mismatches": 0}} into "content.mismatches".
void Collect(const Document& json, const std::string& prefix, const Engine& engine,
             FigureMap& figures) {
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object() && prefix.empty()) {
      Collect(value, name, engine, figures);
    } else if ((value.is_number() || value.is_boolean()) && engine.FindMetric(name) != nullptr) {
      figures[name] = value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
    }
  }
}

const Document& ArrayAt(const Document& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) {
    throw Error(Finding::kBadField, "this is not a summary of a gate: '{}' is not an array", key);
  }
  return *found;
}

bool IsTrue(const Document& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

void Conclude(const std::string& status, BaselineCase& of) {
  of.passed = status == "pass";
  of.failed |= status == "fail" || status == "inconclusive";
}

// Returns the hashes of the files that were read, by name.
std::map<std::string, std::string> ReadHashes(const Document& json) {
  std::map<std::string, std::string> hashes;
  const auto inputs = json.find("inputs");
  if (inputs == json.end() || !inputs->is_array()) return hashes;
  for (const Document& input : *inputs) {
    if (input.is_object()) hashes[WordOr(input, "file")] = WordOr(input, "xxh3");
  }
  return hashes;
}

std::map<std::string, std::string> ReadSettings(const Document& item) {
  std::map<std::string, std::string> settings;
  if (item.contains("params") && item["params"].is_object()) {
    for (const auto& [name, value] : item["params"].items()) settings[name] = value.dump();
  }
  if (!item.contains("rows") || !item["rows"].is_array()) return settings;
  for (const char* key : {"prompt_tokens", "decode_tokens"}) {
    for (const Document& row : item["rows"]) {
      if (!row.is_object() || !row.contains(key)) continue;
      std::string& lengths = settings[key];
      lengths += (lengths.empty() ? "" : ",") + row[key].dump();
    }
  }
  return settings;
}

void ReadCase(const Document& item, const std::map<std::string, std::string>& hashes,
              const Engine& engine, BaselineCase& of) {
  for (const char* part : {"engine", "true_figures"}) {
    if (item.contains(part)) Collect(item[part], "", engine, of.figures);
  }
  of.origin = WordOr(item, "origin");
  Conclude(WordOr(item, "status"), of);
  const auto rules = item.find("rules");
  if (rules != item.end() && rules->is_array()) {
    for (const Document& rule : *rules) {
      if (!rule.is_object()) continue;
      of.failed |= WordOr(rule, "status") == "fail";
      // A figure in the engine's row that its logs do not confirm counts as not measured in the
      // baseline, too.
      const auto value = rule.find("value");
      if (value != rule.end() && value->is_null()) of.figures.erase(WordOr(rule, "metric"));
    }
  }
  const auto listed = hashes.find(WordOr(item, "snapshot"));
  for (const std::string& hash :
       {WordOr(item, "snapshot_xxh3"), listed == hashes.end() ? std::string() : listed->second}) {
    if (!hash.empty()) of.snapshot_hashes.push_back(hash);
  }
  of.trace_hash = WordOr(item, "trace_xxh3");
  of.states_trace = item.contains("trace_xxh3");
  of.settings = ReadSettings(item);
}

// Returns true if a baseline states that it passed and nothing in it contradicts that.
bool Passed(const Document& json, const Baseline& baseline) {
  const bool stated =
      baseline.verdict.empty() ? IsTrue(json, "overall_pass") : baseline.verdict == "pass";
  return stated && std::none_of(baseline.cases.begin(), baseline.cases.end(),
                                [](const auto& entry) { return entry.second.failed; });
}

// Returns true if the rule is about a figure of an engine's run, which no replay has.
bool IsBeyondReplay(const Engine& engine, const DeltaRule& rule, const CaseResult& result) {
  return result.origin != Origin::kLogs && !rule.is_asked &&
         engine.FindMetric(rule.metric)->needs == Needs::kEngine;
}

// Returns one outcome per rule whose figure the older run has for this case. A figure that is no
// longer measured fails.
std::vector<RuleOutcome> CompareWithBaseline(const BaselineCase& older,
                                             const std::vector<DeltaRule>& rules,
                                             const Engine& engine, const CaseResult& result) {
  std::vector<RuleOutcome> outcomes;
  for (const DeltaRule& rule : rules) {
    const auto found = older.figures.find(rule.metric);
    if (found == older.figures.end() || IsBeyondReplay(engine, rule, result)) continue;
    const double value = found->second;
    const auto compare = [&](Op op, double change) {
      RuleOutcome outcome = Evaluate({std::string(rule.metric), op,
                                      value + change * std::abs(value), false, false, rule.is_flag},
                                     result.measured);
      outcome.baseline = value;
      if (!outcome.value) {
        outcome.status = Status::kFail;
        outcome.reason = "no longer measured: " + outcome.reason;
      }
      outcomes.push_back(std::move(outcome));
    };
    if (rule.max_drop) compare(Op::kAtLeast, -*rule.max_drop);
    if (rule.max_rise) compare(Op::kAtMost, *rule.max_rise);
  }
  return outcomes;
}

std::string NameBaseline(const Baseline& baseline) {
  return (baseline.is_pinned ? "pinned baseline " : "baseline ") + Escaped(baseline.file);
}

// Returns true if a figure was measured then and is unknown now. An engine's run and a replay do
// not measure the same figures.
bool WasMeasured(const Engine& engine, const BaselineCase& older, const CaseResult& result,
                 const RuleOutcome& rule) {
  const MetricInfo* info = engine.FindMetric(rule.rule.metric);
  return rule.status == Status::kNotRun && !rule.value && !rule.baseline && info != nullptr &&
         info->needs != Needs::kClock && older.origin == Name(result.origin) &&
         older.figures.find(rule.rule.metric) != older.figures.end();
}

std::string OtherSnapshot(const BaselineCase& older, const CaseResult& result) {
  if (result.snapshot_hash.empty()) return {};
  if (older.snapshot_hashes.empty()) return "does not name its snapshot";
  for (const std::string& hash : older.snapshot_hashes) {
    if (hash == result.snapshot_hash) continue;
    return fmt::format("was of another snapshot: xxh3 {}, now {}", Escaped(hash),
                       result.snapshot_hash);
  }
  return {};
}

// Returns how the trace differs: another trace of the same cache gives other attention figures.
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

// Versions before 0.2 did not write the trace's hash, which the next baseline will have.
bool LacksTraceHash(const JudgeOptions& options, const Baseline& baseline,
                    const BaselineCase& older, const CaseResult& result) {
  return baseline.is_ours && !options.new_recordings && !older.states_trace &&
         !result.trace_hash.empty();
}

// Adds figures that are no longer measured to the problems of the baseline, if they fail nothing.
void AddUnmeasured(const CaseResult& result, Baseline& baseline) {
  for (const RuleOutcome& rule : result.rules) {
    if (!rule.baseline || rule.value || rule.pinned != baseline.is_pinned) continue;
    baseline.problems.push_back(fmt::format("case '{}': {} was {}, {}", Escaped(result.spec.name),
                                            rule.rule.shown(), NumberText(*rule.baseline),
                                            rule.reason));
  }
}

// A difference within the noise of equal runs breaks no rule. If the noise is that of the figure's
// own repetitions, it excuses at most a tenth of the older value, and no limit that names a value:
// otherwise a run with enough noise could not fail.
void MindNoise(const CaseResult& result, RuleOutcome& rule) {
  constexpr double kMostExcused = 0.1;
  const Measurement* measured = result.measured.Find(rule.rule.metric);
  if (measured == nullptr || !measured->noise || rule.status != Status::kFail || !rule.value)
    return;
  double width = *measured->noise;
  if (!measured->noise_why.empty()) {
    if (!rule.baseline) return;
    width = std::min(width, kMostExcused * std::abs(*rule.baseline));
  }
  const bool more_is_better = rule.rule.op == Op::kAtLeast || rule.rule.op == Op::kAbove;
  const double best = *rule.value + (more_is_better ? width : -width);
  if (!Holds(best, rule.rule.op, rule.rule.limit)) return;
  rule.status = Status::kInconclusive;
  rule.reason = measured->noise_why;
  if (!rule.reason.empty()) return;
  rule.reason = fmt::format(
      "the baselines differ by {:.1f}% without any change; more repeats of the baseline and of the "
      "case would decide",
      100 * width);
}

// Adds rules on the permitted change of this case's figures from those of a baseline. A figure that
// the older run measured and this one did not fails if a rule on its change or a rule of the case
// asks for it; times are compared only on request.
void AddRulesFor(const Baseline& baseline, const std::vector<DeltaRule>& rules,
                 const JudgeOptions& options, const GateResult& gate, CaseResult& result) {
  const bool lenient = options.lenient_baseline;
  const auto older = baseline.cases.find(result.spec.name);
  if (older == baseline.cases.end()) return;
  std::vector<RuleOutcome> deltas = CompareWithBaseline(older->second, rules, *gate.engine, result);
  // Logs of engines without a suite do not have its names.
  const bool is_plain = result.origin == Origin::kLogs && !result.logs;
  for (RuleOutcome& rule : deltas) {
    if (!rule.value && lenient) rule.status = Status::kNotRun;
    if (is_plain) rule.rule.word = gate.engine->FindMetric(rule.rule.metric)->word;
    rule.pinned = baseline.is_pinned;
    const Measurement* measured = result.measured.Find(rule.rule.metric);
    if (measured != nullptr && !measured->noise_why.empty()) MindNoise(result, rule);
  }
  for (RuleOutcome& rule : result.rules) {
    if (lenient || !WasMeasured(*gate.engine, older->second, result, rule)) continue;
    rule.status = Status::kFail;
    rule.baseline = older->second.figures.find(rule.rule.metric)->second;
    rule.pinned = baseline.is_pinned;
    rule.reason = "no longer measured: " + rule.reason;
  }
  std::move(deltas.begin(), deltas.end(), std::back_inserter(result.rules));
}

// Returns a guess at a log that was renamed: the only case that is new and has the test of the
// missing one.
std::string SuggestRenamed(const std::string& missing, const Baseline& baseline,
                           const GateResult& gate) {
  const auto test_of = [](const std::string& name) {
    return name.substr(std::min(name.find(':'), name.size()));
  };
  std::vector<std::string> names;
  for (const CaseResult& item : gate.cases) {
    const std::string& name = item.spec.name;
    const bool is_new = item.origin == Origin::kLogs && !baseline.cases.contains(name);
    if (is_new && test_of(name) == test_of(missing)) names.push_back(Escaped(name));
  }
  return names.size() == 1 ? fmt::format("; was its log renamed? '{}' is new", names[0]) : "";
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
      baseline.problems.push_back(fmt::format("case '{}' is not in this run{}", Escaped(name),
                                              SuggestRenamed(name, baseline, gate)));
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

// Finds a baseline with nothing comparable, and rules of the config whose figure no case has in
// both runs.
void RequireCompared(const JudgeOptions& options, const GateResult& gate, Baseline& baseline) {
  const bool is_pinned = baseline.is_pinned;
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
        "nothing was compared with it: no rule on baselines names a figure that both have");
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

// Warns about misleading comparisons. Cases that the baseline lacks fail with --strict.
void AddDoubts(const JudgeOptions& options, const Baseline& baseline, GateResult& gate) {
  const std::string name = NameBaseline(baseline) + ": ";
  if (baseline.is_ours && baseline.version != options.version) {
    gate.warnings.push_back(fmt::format(
        "{}it was made by kvtool {}, this is {}: a difference may come from the program", name,
        baseline.version.empty() ? "of an unknown version" : Escaped(baseline.version),
        options.version));
  }
  std::vector<std::string> unknown;
  std::map<std::string, std::vector<std::string>> differing;  // cases by the settings that differ
  bool replays = false;
  for (const CaseResult& item : gate.cases) {
    if (item.origin == Origin::kNone) continue;
    replays |= item.origin == Origin::kReplay;
    const auto older = baseline.cases.find(item.spec.name);
    if (older == baseline.cases.end()) {
      unknown.push_back(Escaped(item.spec.name));
    } else if (const std::string other = OtherSettings(older->second, item); !other.empty()) {
      differing[other].push_back(Escaped(item.spec.name));
    }
  }
  for (const auto& [settings, names] : differing) {
    gate.warnings.push_back(
        name +
        (names.size() == 1 ? fmt::format("case '{}'", names[0])
                           : fmt::format("{} cases, '{}' the first,", names.size(), names[0])) +
        " ran with other settings: " + settings);
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

// Checks whether a baseline can say anything about this run at all, and collects its problems.
void CheckBaseline(const JudgeOptions& options, Baseline& baseline, GateResult& gate) {
  if (baseline.cases.empty()) {
    baseline.problems.emplace_back("it has no cases");
  } else if (!baseline.passed) {
    baseline.problems.emplace_back("its own run did not pass");
  }
  if (baseline.is_pinned && !options.pinned_commit.empty() &&
      !baseline.commit.starts_with(options.pinned_commit)) {
    baseline.problems.push_back(
        fmt::format("it is of commit {}, but pinned_commit is {}",
                    baseline.commit.empty() ? "unknown" : Escaped(baseline.commit),
                    Escaped(options.pinned_commit)));
  }
  CheckCases(options, baseline, gate);
  if (!baseline.cases.empty()) RequireCompared(options, gate, baseline);
  AddDoubts(options, baseline, gate);
  const bool lenient = options.lenient_baseline;
  if (lenient) {
    for (const CaseResult& item : gate.cases) AddUnmeasured(item, baseline);
  }
  for (const std::string& problem : baseline.problems) {
    (lenient ? gate.warnings : gate.reasons).push_back(NameBaseline(baseline) + ": " + problem);
  }
}

// Fails every case that could not be decided.
void Tighten(CaseResult& result) {
  for (RuleOutcome& rule : result.rules) {
    if (rule.status != Status::kNotRun && rule.status != Status::kInconclusive) continue;
    rule.reason =
        fmt::format("--strict: {}: {}", rule.status == Status::kNotRun ? "not run" : "inconclusive",
                    rule.reason.empty() ? "not measured" : rule.reason);
    rule.status = Status::kFail;
  }
}

// Returns true if the only rules that passed are ones that no config requested, which proves
// little.
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

void Conclude(CaseResult& result) {
  // Engine logs may fail a case without a rule: a return code, a missing report.
  const std::string stated = result.reason;
  const bool failed_before = result.status == Status::kFail;
  result.status = failed_before || result.first_failure() != nullptr ? Status::kFail
                  : result.first(Status::kInconclusive) != nullptr   ? Status::kInconclusive
                  : RestsOnImplied(result)                           ? Status::kNotRun
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

// A figure that is not a number fails whatever the rules are, unless a rule is about it.
void RequireFinite(CaseResult& result) {
  const std::string metric = "content.not_finite";
  if (result.measured.Value(metric).value_or(0) == 0) return;
  const bool is_named = std::any_of(result.spec.rules.begin(), result.spec.rules.end(),
                                    [&](const Rule& rule) { return rule.metric == metric; });
  if (is_named) return;
  result.rules.push_back(Evaluate({metric, Op::kAtMost, 0, false, true}, result.measured));
}

// A replay runs on this machine, beside other work: thresholds of a suite on an engine's times do
// not apply to it. A rule in a config is meant for it.
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
  if (result.origin != Origin::kNone) {
    if (gate.baseline) AddRulesFor(*gate.baseline, options.baseline_rules, options, gate, result);
    if (gate.pinned) AddRulesFor(*gate.pinned, options.pinned_rules, options, gate, result);
  }
  if (options.strict) Tighten(result);
  Conclude(result);
}

void RequireDecided(bool is_said, bool strict, GateResult& gate) {
  for (const CaseResult& item : gate.cases) {
    if (item.status == Status::kPass || item.status == Status::kFail) continue;
    const bool is_whole = item.spec.on_not_run == OnNotRun::kWarn;
    if (is_said && is_whole && !strict) continue;
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
        fmt::format("expected_cases: {} cases must be decided, {} were", *expected.count, decided));
  }
}

// Returns true if any rule was asked for: the cases of some engines' logs come without one.
bool AsksAnything(const CaseResult& result) {
  return result.origin != Origin::kLogs ||
         std::any_of(result.rules.begin(), result.rules.end(),
                     [](const RuleOutcome& rule) { return !rule.rule.implied; });
}

void RequireAnyDecided(bool has_rules, GateResult& gate) {
  if (gate.count(Status::kNotRun) != gate.cases.size() || gate.starts_baseline) return;
  const bool is_compared = gate.baseline || gate.pinned;
  gate.reasons.insert(
      gate.reasons.begin(),
      has_rules ? "no case was decided: nothing that a rule asks for was measured"
      : is_compared
          ? "no case was decided: the baseline has none of this run's cases, and no other rule "
            "judges them"
          : "no case was decided: no rule judges these logs (give --require 'FIGURE>=LIMIT', "
            "--baseline OLD.json or a config, or make a first baseline with -o NEW.json)");
}

}  // namespace

Baseline ParseBaseline(std::string_view text, std::string file, const Engine& engine) {
  Baseline baseline;
  baseline.file = std::move(file);
  const Document json = ReadJson(text);
  if (json.is_discarded()) throw Error(Finding::kBadText, "expected a JSON document");
  if (!json.is_object())
    throw Error(Finding::kBadField, "this is not a summary of a gate: it is not an object");
  const std::string schema = WordOr(json, "schema");
  if (!schema.empty() && schema != "kvtool.gate/1") {
    throw Error(Finding::kBadField, "expected schema kvtool.gate/1, found '{}'", Escaped(schema));
  }
  baseline.generated_at = WordOr(json, "generated_at");
  baseline.verdict = WordOr(json, "verdict");
  baseline.commit = WordOr(json, "commit");
  baseline.is_ours = !schema.empty();
  if (json.contains("tool") && json["tool"].is_object()) {
    baseline.version = WordOr(json["tool"], "version");
  }
  for (const Document& row : ArrayAt(json, "rows")) {
    const std::string name = row.is_object() ? WordOr(row, "case") : std::string();
    if (name.empty()) throw Error(Finding::kBadField, "a row has no 'case'");
    BaselineCase& of = baseline.cases[name];
    Collect(row, "", engine, of.figures);
    if (baseline.is_ours) continue;
    of.origin = "engine_logs";
    Conclude(IsTrue(row, "overall_pass") ? "pass" : "fail", of);
  }
  if (baseline.is_ours) {
    const std::map<std::string, std::string> hashes = ReadHashes(json);
    for (const Document& item : ArrayAt(json, "cases")) {
      const std::string name = item.is_object() ? WordOr(item, "name") : std::string();
      if (name.empty()) throw Error(Finding::kBadField, "a case has no 'name'");
      ReadCase(item, hashes, engine, baseline.cases[name]);
    }
  }
  baseline.passed = Passed(json, baseline);
  return baseline;
}

void Judge(const JudgeOptions& options, GateResult& result) {
  if (result.pinned) result.pinned->is_pinned = true;
  for (CaseResult& item : result.cases) JudgeCase(result, options, item);
  if (result.baseline) CheckBaseline(options, *result.baseline, result);
  if (result.pinned) CheckBaseline(options, *result.pinned, result);
  const bool has_rules = std::any_of(result.cases.begin(), result.cases.end(), AsksAnything);
  result.starts_baseline = options.may_start && !has_rules && !result.cases.empty();
  const bool none_ran = result.count(Status::kNotRun) == result.cases.size();
  // RequireAnyDecided says once of all cases that no rule judges them.
  RequireDecided(result.starts_baseline || (!has_rules && none_ran), options.strict, result);
  if (!options.partial) RequireExpected(options.expected, result);
  RequireAnyDecided(has_rules, result);
}

}  // namespace kv::gate
