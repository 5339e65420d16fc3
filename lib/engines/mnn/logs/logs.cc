// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Judges the cases of engine logs: the engine's own rules, checks of the evidence, and the verdict
// of each case and of all.
#include "lib/engines/mnn/logs/logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/engines/mnn/logs/demo.h"

namespace kv::mnn::logs {
namespace {

using gate::CaseResult;

Status Worst(const std::vector<Status>& statuses) {
  const auto has = [&](Status status) {
    return std::find(statuses.begin(), statuses.end(), status) != statuses.end();
  };
  if (has(Status::kFail)) return Status::kFail;
  if (has(Status::kInconclusive)) return Status::kInconclusive;
  return has(Status::kPass) ? Status::kPass : Status::kNotRun;
}

// Returns "lossy_best 2.4, needs >= 3: the worst row".
std::string Sentence(const RuleOutcome& rule) {
  const double limit = rule.rule.limit;
  std::string text = rule.rule.metric;
  if (rule.value) text += fmt::format(" {:.6g}", *rule.value);
  if (rule.value && !std::isnan(limit)) {
    text += fmt::format(", needs {} {:.6g}", Name(rule.rule.op), limit);
  }
  return rule.reason.empty() ? text : text + ": " + rule.reason;
}

// Sets the distance of each value from its limit.
void SetMargins(CaseResult& c) {
  for (RuleOutcome& rule : c.rules) {
    if (!rule.value || std::isnan(rule.rule.limit)) continue;
    const double value = *rule.value, limit = rule.rule.limit;
    rule.margin = rule.rule.op == Op::kAtMost ? limit - value : value - limit;
  }
}

// Decides a case: its first failing rule counts, and rules that could not be judged are named.
void Conclude(CaseResult& c) {
  std::vector<Status> statuses;
  std::string open, unsure;
  for (const RuleOutcome& rule : c.rules) {
    // Sound evidence alone does not make a case pass.
    if (rule.status != Status::kPass || !rule.rule.implied) statuses.push_back(rule.status);
    if (rule.status == Status::kFail && c.reason.empty()) c.reason = Sentence(rule);
    if (rule.status == Status::kInconclusive && unsure.empty()) unsure = Sentence(rule);
    if (rule.status == Status::kNotRun) open += (open.empty() ? "" : ", ") + rule.rule.metric;
  }
  c.status = Worst(statuses);
  if (c.reason.empty()) c.reason = unsure;
  if (c.reason.empty() && !open.empty()) c.reason = "not run: " + open;
}

// Returns a rule for a count of bad events that must be 0, or of good ones that must not be 0.
RuleOutcome CountRule(std::string_view metric, Op op, uint64_t count, std::string_view reason) {
  return Decide(metric, op, 0, static_cast<double>(count), {}, reason);
}

// Judges a rule by its limit alone, whatever its status was before.
void DecideAgain(double limit, double value, std::string_view reason, RuleOutcome& rule) {
  rule.rule.implied = true;
  rule.rule.limit = limit;
  rule.value = value;
  rule.status = value <= limit ? Status::kPass : Status::kFail;
  if (!reason.empty()) rule.reason = reason;
}

RuleOutcome* FindRule(std::string_view metric, CaseResult& result) {
  const auto found =
      std::find_if(result.rules.begin(), result.rules.end(),
                   [&](const RuleOutcome& rule) { return rule.rule.metric == metric; });
  return found == result.rules.end() ? nullptr : &*found;
}

// Adds a rule for lines of a broken cache, if the analyzer's rules omit them or read fewer logs.
void AddDamageRule(const CaseLogs& logs, const AnalyzerOptions& options, CaseResult& result) {
  constexpr std::string_view kMetric = "kv_invalid_log_count";
  if (FindRule(kMetric, result) == nullptr) {
    if (logs.evidence.damage.logs() == 0) return;
    result.rules.push_back(NewRule(kMetric, Op::kAtMost));
  }
  RuleOutcome& rule = *FindRule(kMetric, result);
  const InvalidLines& lines = logs.evidence.damage.lines();
  const auto allowed = static_cast<double>(std::max<int64_t>(0, options.max_kv_invalid_log_lines));
  DecideAgain(allowed, std::max(rule.value.value_or(0), static_cast<double>(lines.count)),
              lines.count == 0 ? std::string()
                               : "lines that say the cache is broken: " + lines.examples.front(),
              rule);
}

// Adds a rule for fallbacks: a range that fell back was not kept as the case says, whatever limit
// the engine was given.
void AddFallbackRule(const CaseLogs& logs, CaseResult& result) {
  constexpr std::string_view kMetric = "runtime_fallback_best";
  if (!logs.facts || !logs.facts->of(kMetric).most) return;
  if (RuleOutcome* rule = FindRule(kMetric, result)) {
    rule->rule.implied = true;
    return;
  }
  const Spread& fallback = logs.facts->of(kMetric);
  RuleOutcome rule = Decide(kMetric, Op::kAtMost, 0, fallback.most, fallback.most_log,
                            "the engine was given no limit; --max-lossless-fallback allows more");
  rule.rule.implied = true;
  result.rules.push_back(std::move(rule));
}

// Adds a rule for each kind of evidence that fails a case whatever its figures are.
void AddEvidenceRules(const CaseLogs& logs, const AnalyzerOptions& options, CaseResult& result) {
  const Evidence& evidence = logs.evidence;
  AddFallbackRule(logs, result);
  AddDamageRule(logs, options, result);
  const auto add = [&](RuleOutcome rule) {
    rule.rule.implied = true;
    result.rules.push_back(std::move(rule));
  };
  if (logs.bench.runs > 0) {
    const std::vector<std::string>& failures = logs.bench.failures;
    add(CountRule("bench_runs_failed", Op::kAtMost, logs.bench.failed_runs,
                  failures.empty() ? std::string() : "manifest.json: " + failures.front()));
  }
  add(CountRule("non_finite_figures", Op::kAtMost, evidence.non_finite.count,
                evidence.non_finite.Text()));
  add(CountRule("missing_evidence", Op::kAtMost, evidence.gaps.count, evidence.gaps.Text()));
  // The engine's own verdict on the case, from all its documents.
  for (const Denial& denial : evidence.denials) {
    RuleOutcome rule = NewRule(denial.metric, Op::kEqual);
    rule.engine_pass = false;
    rule.status = Status::kFail;
    rule.reason = denial.reason;
    add(std::move(rule));
  }
}

// Adds the checks that the suite's shell script makes on the engine's own lines.
void AddLineRules(const CaseLogs& logs, const AnalyzerOptions& options, CaseResult& result) {
  const LosslessLines& lines = logs.bench.lossless;
  const bool compresses = !options.runtime_mode.empty() && logs.suite_case.name != kBaselineCase;
  const bool expected = logs.bench.has_stdout && compresses &&
                        (options.runtime_mode == "full" || options.runtime_mode == "store");
  if (expected || lines.count > 0) {
    result.rules.push_back(CountRule("h2o_lossless_lines", Op::kAbove, lines.count,
                                     "no [H2O-LOSSLESS] line: the lossless runtime never ran"));
  }
  if (compresses && logs.bench.table.HasColumn("h2o_lossless_raw_mb")) {
    uint64_t compressing = 0;
    for (const AnalyzerRow& row : ExactRows(logs.bench.table)) {
      compressing += row.raw_mb > 0 && row.lossless > 1;
    }
    result.rules.push_back(CountRule("h2o_lossless_rows", Op::kAbove, compressing,
                                     "no row has raw bytes and a lossless ratio above 1, as the "
                                     "engine's script asks"));
  }
  if (lines.count == 0) return;
  // The engine's counters omit fallbacks of layers where nothing was compressed; its log lines have
  // them.
  RuleOutcome fallbacks = NewRule("h2o_lossless_line_fallbacks", Op::kAtMost);
  DecideAgain(std::max(0.0, options.max_lossless_fallback),
              static_cast<double>(lines.most_fallbacks), {}, fallbacks);
  if (fallbacks.status == Status::kFail) {
    fallbacks.reason = "an [H2O-LOSSLESS] line reports more fallbacks than the table";
  }
  result.rules.push_back(std::move(fallbacks));
  result.rules.push_back(CountRule("h2o_lossless_lines_of_192_tokens", Op::kAtMost,
                                   lines.of_192_tokens, "an engine that still groups 192 tokens"));
  Json& layers = result.logs->true_figures["layers"] = Json::array();
  for (const LosslessLines::Layer& layer : lines.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"lines", layer.lines},
                      {"ratio", layer.last_ratio},
                      {"fallbacks", layer.fallbacks}});
  }
}

double FindBaseline(const CaseLogs& logs) {
  if (IsDemoName(logs.suite_case.name)) return NumberAt(logs.report, "baseline_decode_tps_avg");
  const auto found = logs.bullets.find("decode_baseline");
  const double value = found == logs.bullets.end() ? 0 : FirstNumber(found->second).value_or(0);
  return std::isfinite(value) ? value : 0;
}

// Fails a case that did not end, or left no report. If the engine's gate gave a verdict, its
// findings come first, because the return code follows from them.
void AddOutcome(const CaseLogs& logs, CaseResult& c) {
  const SuiteCase& suite_case = logs.suite_case;
  const auto fails = [](const RuleOutcome& rule) { return rule.status == Status::kFail; };
  const bool no_report = suite_case.return_code != 0 || logs.report_missing;
  const bool unsaid =
      !TruthAt(c.logs->row, "overall_pass") && std::none_of(c.rules.begin(), c.rules.end(), fails);
  if (!no_report && !unsaid) return;
  RuleOutcome rule = NewRule("overall_pass", Op::kEqual);
  rule.status = Status::kFail;
  rule.rule.implied = true;
  rule.engine_pass = false;
  rule.reason = TextAt(c.logs->row, "failure_reason");
  if (logs.report_missing) {
    rule.rule.metric = "summary_exists";
    if (!logs.report_trouble.empty()) rule.reason = logs.report_trouble;
  }
  if (suite_case.return_code != 0) {
    rule.rule.metric = "return_code";
    rule.rule.limit = 0;
    rule.value = static_cast<double>(suite_case.return_code);
    rule.where.log = logs.code_place;
    if (suite_case.console_log.empty()) rule.reason.clear();  // the log that it names is absent
  }
  const auto status = logs.bullets.find("quality_status");
  const bool gate_failed = !logs.report_missing && status != logs.bullets.end();
  c.rules.insert(gate_failed ? c.rules.end() : c.rules.begin(), std::move(rule));
}

// Notes if nothing but the engine's own verdict fails a case, so that a reader does not search the
// logs.
void NoteStrictEngine(const CaseLogs& logs, CaseResult& c) {
  if (logs.evidence.denials.empty()) return;
  const bool alone = std::none_of(c.rules.begin(), c.rules.end(), [&](const RuleOutcome& rule) {
    const bool is_denial =
        std::any_of(logs.evidence.denials.begin(), logs.evidence.denials.end(),
                    [&](const Denial& denial) { return denial.reason == rule.reason; });
    return rule.status == Status::kFail && !is_denial;
  });
  if (!alone) return;
  c.warnings.push_back(
      "no figure of these logs fails a rule of kvtool; the engine's own failure remains");
}

bool IsAsked(std::string_view option, const EngineLogsInput& input) {
  return std::any_of(input.options.begin(), input.options.end(), [&](const auto& given) {
    std::string name = given.first.substr(given.first.starts_with("--") ? 2 : 0);
    std::replace(name.begin(), name.end(), '-', '_');
    return name == option;
  });
}

CaseResult Judge(const CaseLogs& logs, const EngineLogsInput& input, const BaselineNoise& noise) {
  const SuiteCase& suite_case = logs.suite_case;
  CaseResult c;
  c.origin = gate::Origin::kLogs;
  c.logs.emplace();
  c.logs->true_figures = Json::object();
  c.spec.name = suite_case.name;
  c.spec.mode = suite_case.mode;
  c.warnings = logs.notes;
  AnalyzerOptions options = logs.options;
  for (const auto& [name, value] : input.options) SetAnalyzerOption(name, value, options);
  if (IsDemoName(c.spec.name)) {
    c.spec.suite = "llm_demo";
    c.logs->row = logs.row ? *logs.row : DemoRow(suite_case);
    if (!logs.report.empty()) {
      c.rules = DemoRules(logs.report, options, noise, IsAsked("lossy_target", input));
      c.logs->true_figures = DemoFigures(logs.report, noise);
    }
  } else {
    c.spec.suite = "runtime";
    c.logs->row = logs.row ? *logs.row : RuntimeRow(suite_case);
    if (logs.facts) {
      c.rules = RuntimeRules(*logs.facts, logs.bullets, options, noise);
      c.logs->true_figures = RuntimeFigures(*logs.facts, noise);
      c.warnings.insert(c.warnings.end(), logs.facts->notes.begin(), logs.facts->notes.end());
    }
  }
  AddLineRules(logs, options, c);
  AddEvidenceRules(logs, options, c);
  AddOutcome(logs, c);
  NoteStrictEngine(logs, c);
  SetMargins(c);
  Conclude(c);
  return c;
}

void NoteNoise(EngineVerdict& verdict) {
  const auto noise = verdict.baseline_noise.relative();
  if (!noise) return;
  const std::vector<double>& speeds = verdict.baseline_noise.tokens_per_second;
  const auto [least, most] = std::minmax_element(speeds.begin(), speeds.end());
  verdict.notes.push_back(
      fmt::format("the baselines of {} cases ran unchanged between {:.4g} and {:.4g} tokens/s: a "
                  "difference below {:.1f}% says nothing",
                  speeds.size(), *least, *most, 100 * *noise));
}

}  // namespace

EngineVerdict AnalyzeEngineLogs(const EngineLogsInput& input) {
  EngineVerdict verdict;
  LogsRead read = ReadEngineLogs(input);
  verdict.path = read.shown;
  verdict.absent_cases = read.absent_cases;
  verdict.notes = read.notes;
  BaselineNoise demo_noise;
  for (const CaseLogs& logs : read.cases) {
    const double baseline = FindBaseline(logs);
    if (!(baseline > 0) || !std::isfinite(baseline)) continue;
    BaselineNoise& noise = IsDemoName(logs.suite_case.name) ? demo_noise : verdict.baseline_noise;
    noise.tokens_per_second.push_back(baseline);
  }
  std::vector<Status> statuses;
  verdict.engine_pass = !read.cases.empty();
  for (const CaseLogs& logs : read.cases) {
    const bool demo = IsDemoName(logs.suite_case.name);
    verdict.cases.push_back(Judge(logs, input, demo ? demo_noise : verdict.baseline_noise));
    statuses.push_back(verdict.cases.back().status);
    verdict.engine_pass &= TruthAt(verdict.cases.back().logs->row, "overall_pass");
    verdict.engine_pass &= logs.evidence.denials.empty();
  }
  verdict.status = Worst(statuses);
  NoteNoise(verdict);
  return verdict;
}

}  // namespace kv::mnn::logs
