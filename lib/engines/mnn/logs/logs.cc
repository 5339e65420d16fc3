// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/engines/mnn/logs/case.h"
#include "lib/engines/mnn/logs/reading.h"
#include "lib/engines/mnn/logs/truth.h"

namespace kv::mnn::logs {
namespace {

RuleStatus Worst(const std::vector<RuleStatus>& statuses) {
  const auto has = [&](RuleStatus status) {
    return std::find(statuses.begin(), statuses.end(), status) != statuses.end();
  };
  if (has(RuleStatus::kFail)) return RuleStatus::kFail;
  if (has(RuleStatus::kInconclusive)) return RuleStatus::kInconclusive;
  return has(RuleStatus::kPass) ? RuleStatus::kPass : RuleStatus::kNotRun;
}

// "lossy_best 2.4, needs >= 3: the worst row"
std::string Sentence(const EngineRule& rule) {
  std::string text = rule.metric;
  if (rule.value) text += fmt::format(" {:.6g}", *rule.value);
  if (rule.value && rule.limit) text += fmt::format(", needs {} {:.6g}", rule.op, *rule.limit);
  return rule.reason.empty() ? text : text + ": " + rule.reason;
}

// What decides a case: its first failing rule; the rules that could not be judged are named.
void Conclude(EngineCase& c) {
  std::vector<RuleStatus> statuses;
  std::string open, unsure;
  for (const EngineRule& rule : c.rules) {
    // That nothing is wrong with the evidence decides nothing yet.
    if (rule.status != RuleStatus::kPass || !rule.evidence) statuses.push_back(rule.status);
    if (rule.status == RuleStatus::kFail && c.reason.empty()) c.reason = Sentence(rule);
    if (rule.status == RuleStatus::kInconclusive && unsure.empty()) unsure = Sentence(rule);
    if (rule.status == RuleStatus::kNotRun) open += (open.empty() ? "" : ", ") + rule.metric;
  }
  c.status = Worst(statuses);
  if (c.reason.empty()) c.reason = unsure;
  if (c.reason.empty() && !open.empty()) c.reason = "not run: " + open;
}

double BaselineOf(const CaseLogs& logs) {
  if (IsDemoName(logs.suite_case.name)) return NumberAt(logs.report, "baseline_decode_tps_avg");
  const auto found = logs.bullets.find("decode_baseline");
  const double value = found == logs.bullets.end() ? 0 : FirstNumber(found->second).value_or(0);
  return std::isfinite(value) ? value : 0;
}

// A case that did not end, or left no report, fails whatever else is there. Where the engine's gate
// had its word, what it found comes first: the return code follows from it.
void AddOutcome(const CaseLogs& logs, EngineCase& c) {
  const SuiteCase& suite_case = logs.suite_case;
  const auto fails = [](const EngineRule& rule) { return rule.status == RuleStatus::kFail; };
  const bool no_report = suite_case.return_code != 0 || logs.report_missing;
  const bool unsaid =
      !TruthAt(c.engine, "overall_pass") && std::none_of(c.rules.begin(), c.rules.end(), fails);
  if (!no_report && !unsaid) return;
  EngineRule rule;
  rule.op = "==";
  rule.status = RuleStatus::kFail;
  rule.evidence = true;
  rule.engine_pass = false;
  rule.reason = TextAt(c.engine, "failure_reason");
  rule.metric = "overall_pass";
  if (logs.report_missing) {
    rule.metric = "summary_exists";
    if (!logs.report_trouble.empty()) rule.reason = logs.report_trouble;
  }
  if (suite_case.return_code != 0) {
    rule.metric = "return_code";
    rule.limit = 0;
    rule.value = static_cast<double>(suite_case.return_code);
    rule.log = logs.code_place;
    if (suite_case.console_log.empty()) rule.reason.clear();  // there is none to say more
  }
  const auto status = logs.bullets.find("quality_status");
  const bool gate_failed = !logs.report_missing && status != logs.bullets.end();
  c.rules.insert(gate_failed ? c.rules.end() : c.rules.begin(), std::move(rule));
}

// Where nothing but the engine's own no fails a case, a reader must know it.
void NoteStrictEngine(const CaseLogs& logs, EngineCase& c) {
  if (logs.evidence.denials.empty()) return;
  const bool alone = std::none_of(c.rules.begin(), c.rules.end(), [&](const EngineRule& rule) {
    const bool is_denial =
        std::any_of(logs.evidence.denials.begin(), logs.evidence.denials.end(),
                    [&](const Denial& denial) { return denial.reason == rule.reason; });
    return rule.status == RuleStatus::kFail && !is_denial;
  });
  if (!alone) return;
  c.notes.push_back("no figure of these logs fails a rule of kvtool's; the engine's no stands");
}

bool IsAsked(std::string_view option, const EngineLogsInput& input) {
  return std::any_of(input.options.begin(), input.options.end(), [&](const auto& given) {
    std::string name = given.first.substr(StartsWith(given.first, "--") ? 2 : 0);
    std::replace(name.begin(), name.end(), '-', '_');
    return name == option;
  });
}

EngineCase Judge(const CaseLogs& logs, const EngineLogsInput& input, const BaselineNoise& noise) {
  const SuiteCase& suite_case = logs.suite_case;
  EngineCase c;
  c.name = suite_case.name;
  c.mode = suite_case.mode;
  c.notes = logs.notes;
  AnalyzerOptions options = logs.options;
  for (const auto& [name, value] : input.options) SetAnalyzerOption(name, value, options);
  if (IsDemoName(c.name)) {
    c.suite = "llm_demo";
    c.engine = DemoRow(suite_case);
    if (!logs.report.empty()) {
      c.rules = DemoRules(logs.report, options, noise, IsAsked("lossy_target", input));
      c.true_figures = DemoFigures(logs.report, noise);
    }
  } else {
    c.suite = "runtime";
    c.engine = RuntimeRow(suite_case);
    c.gate_markdown = logs.gate_markdown;
    if (logs.facts) {
      c.rules = RuntimeRules(*logs.facts, logs.bullets, options, noise);
      c.true_figures = RuntimeFigures(*logs.facts, noise);
      c.notes.insert(c.notes.end(), logs.facts->notes.begin(), logs.facts->notes.end());
    }
  }
  AddLineRules(logs, options, c);
  AddEvidenceRules(logs, options, c);
  AddOutcome(logs, c);
  NoteStrictEngine(logs, c);
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

std::string_view Name(RuleStatus status) {
  if (status == RuleStatus::kPass) return "pass";
  if (status == RuleStatus::kInconclusive) return "inconclusive";
  return status == RuleStatus::kFail ? "fail" : "not_run";
}

EngineVerdict AnalyzeEngineLogs(const EngineLogsInput& input) {
  EngineVerdict verdict;
  LogsRead read = ReadEngineLogs(input);
  verdict.path = read.shown;
  verdict.absent_cases = read.absent_cases;
  verdict.notes = read.notes;
  BaselineNoise demo_noise;
  for (const CaseLogs& logs : read.cases) {
    const double baseline = BaselineOf(logs);
    if (!(baseline > 0) || !std::isfinite(baseline)) continue;
    BaselineNoise& noise = IsDemoName(logs.suite_case.name) ? demo_noise : verdict.baseline_noise;
    noise.tokens_per_second.push_back(baseline);
  }
  std::vector<RuleStatus> statuses;
  verdict.engine_pass = !read.cases.empty();
  for (const CaseLogs& logs : read.cases) {
    const bool demo = IsDemoName(logs.suite_case.name);
    verdict.cases.push_back(Judge(logs, input, demo ? demo_noise : verdict.baseline_noise));
    statuses.push_back(verdict.cases.back().status);
    verdict.engine_pass &= TruthAt(verdict.cases.back().engine, "overall_pass");
    verdict.engine_pass &= logs.evidence.denials.empty();
  }
  verdict.status = Worst(statuses);
  NoteNoise(verdict);
  return verdict;
}

nlohmann::ordered_json CaseJson(const EngineCase& c) {
  const auto number = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
  };
  Json rules = Json::array();
  for (const EngineRule& rule : c.rules) {
    Json entry = {{"metric", rule.metric},       {"op", rule.op},     {"limit", number(rule.limit)},
                  {"value", number(rule.value)}, {"margin", nullptr}, {"status", Name(rule.status)},
                  {"reason", rule.reason}};
    if (rule.limit && rule.value) {
      const bool low = rule.op == "<=";
      entry["margin"] = number(low ? *rule.limit - *rule.value : *rule.value - *rule.limit);
    }
    entry["engine_value"] = number(rule.engine_value);
    entry["engine_pass"] = rule.engine_pass ? Json(*rule.engine_pass) : Json(nullptr);
    if (!rule.log.empty()) entry["where"] = {{"log", rule.log}};
    rules.push_back(std::move(entry));
  }
  Json document = {{"name", c.name},           {"suite", c.suite},   {"mode", c.mode},
                   {"status", Name(c.status)}, {"reason", c.reason}, {"rules", rules},
                   {"engine", c.engine}};
  document["true_figures"] = c.true_figures.is_null() ? Json::object() : c.true_figures;
  document["notes"] = c.notes;
  return document;
}

nlohmann::ordered_json NoiseJson(const BaselineNoise& noise) {
  const auto relative = noise.relative();
  return {{"samples", noise.tokens_per_second.size()},
          {"tokens_per_second", noise.tokens_per_second},
          {"mean", noise.mean()},
          {"relative", relative ? Json(*relative) : Json(nullptr)}};
}

namespace {

std::vector<Json> RowsOf(const EngineVerdict& verdict) {
  std::vector<Json> rows;
  for (const EngineCase& c : verdict.cases) rows.push_back(c.engine);
  return rows;
}

}  // namespace

nlohmann::ordered_json SuiteSummary(const EngineVerdict& verdict, std::string_view generated_at) {
  return SuiteDocument(RowsOf(verdict), generated_at);
}
std::string SuiteSummaryText(const nlohmann::ordered_json& summary) {
  return PythonJson(summary, 2);
}
std::string SuiteMarkdown(const EngineVerdict& verdict) {
  return SuiteText(RowsOf(verdict), verdict.path);
}
std::string SuiteCasesJsonl(const EngineVerdict& verdict) { return SuiteLines(RowsOf(verdict)); }

}  // namespace kv::mnn::logs
