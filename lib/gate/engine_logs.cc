// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/engine_logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/base/bytes.h"
#include "lib/base/error.h"
#include "lib/gate/engine_case.h"
#include "lib/gate/engine_files.h"
#include "lib/gate/engine_truth.h"
#include "lib/gate/engine_words.h"

namespace kv::gate {
namespace {

namespace fs = std::filesystem;

// The suite's cases in its order, with the mode that each runs in.
struct KnownCase {
  std::string_view name, mode;
};
constexpr std::array<KnownCase, 6> kSuiteCases = {{{"runtime_baseline", "full"},
                                                   {"runtime_probe", "probe"},
                                                   {"runtime_full", "full"},
                                                   {"runtime_store", "store"},
                                                   {"llm_demo_full", "full"},
                                                   {"llm_demo_store", "store"}}};
constexpr std::string_view kConsole = ".console.log";

bool IsDemoName(std::string_view name) { return StartsWith(name, "llm_demo"); }
bool IsCaseName(std::string_view name) { return StartsWith(name, "runtime_") || IsDemoName(name); }

std::string ModeOf(std::string_view name) {
  for (const KnownCase& known : kSuiteCases) {
    if (known.name == name) return std::string(known.mode);
  }
  for (const char* mode : {"probe", "full", "store"}) {
    if (EndsWith(name, std::string("_") + mode)) return mode;
  }
  return {};
}

// The cases that a suite's output folder holds or its documents name: the known ones in the suite's
// order, then others.
std::vector<std::string> CasesIn(const LogFolder& folder, const SuiteWords& words) {
  std::vector<std::string> found = folder.Folders();
  for (const std::string& file : folder.Files()) {
    if (EndsWith(file, kConsole)) found.push_back(file.substr(0, file.size() - kConsole.size()));
  }
  found.erase(std::remove_if(found.begin(), found.end(),
                             [](const std::string& name) { return !IsCaseName(name); }),
              found.end());
  for (const auto& [name, of_case] : words.cases) found.push_back(name);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  const auto rank = [](const std::string& name) {
    return std::find_if(kSuiteCases.begin(), kSuiteCases.end(),
                        [&](const KnownCase& known) { return known.name == name; });
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  return found;
}

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

void Append(const Trouble& from, Trouble& to) {
  for (const std::string& example : from.examples) to.Add(example);
  to.count += from.count - from.examples.size();
}

// What the suite's own documents say of a case, and of all.
void AddWords(const SuiteWords& words, bool code_given, CaseLogs& logs) {
  const auto found = words.cases.find(logs.suite_case.name);
  std::vector<const Evidence*> sources = {&words.evidence};
  if (found != words.cases.end()) {
    sources.push_back(&found->second.evidence);
    if (found->second.code_unreadable && !code_given) {
      logs.evidence.gaps.Add(fmt::format("{}: the return_code of {} is no number",
                                         found->second.code_place, logs.suite_case.name));
    }
  } else if (!words.cases.empty()) {
    logs.notes.push_back("the suite's summary does not name this case: it may be of an older run");
  }
  for (const Evidence* source : sources) {
    Append(source->gaps, logs.evidence.gaps);
    Append(source->non_finite, logs.evidence.non_finite);
    logs.evidence.denials.insert(logs.evidence.denials.end(), source->denials.begin(),
                                 source->denials.end());
  }
}

std::vector<CaseLogs> ReadSuite(const LogFolder& folder, const SuiteWords& words,
                                const EngineLogsInput& input) {
  std::vector<CaseLogs> all;
  for (const std::string& name : CasesIn(folder, words)) {
    SuiteCase c;
    c.name = name;
    c.mode = ModeOf(name);
    c.folder = folder.Shown(name);
    c.console_log = folder.Shown(name + std::string(kConsole));
    c.console_text = folder.Text(name + std::string(kConsole));
    const auto code = input.return_codes.find(name);
    const auto written = words.cases.find(name);
    const bool code_given = code != input.return_codes.end();
    std::string code_place = "--return-codes";
    if (code_given) {
      c.return_code = code->second;
    } else if (written != words.cases.end()) {
      c.return_code = written->second.return_code.value_or(0);
      code_place = written->second.code_place;
    }
    all.push_back(IsDemoName(name) ? ReadDemoCase(folder.Sub(name), std::move(c))
                                   : ReadRuntimeCase(folder.Sub(name), std::move(c)));
    CaseLogs& logs = all.back();
    logs.code_place = std::move(code_place);
    if (logs.suite_case.console_text) {
      logs.evidence.damage.AddOther(*logs.suite_case.console_text, logs.suite_case.console_log);
    }
    AddWords(words, code_given, logs);
  }
  return all;
}

Error NoCase(const std::string& name) {
  return Error(Finding::kUsage,
               fmt::format("return codes: no case '{}' in the logs", Escaped(name)));
}

// A folder or file of logs without a suite around it, as one case.
CaseLogs ReadLooseLogs(const EngineLogsInput& input, const std::string& shown) {
  SuiteCase c;
  c.name = fs::path(shown).filename().string();
  if (c.name.empty()) c.name = fs::path(shown).parent_path().filename().string();
  c.folder = shown;
  const LogFolder folder(input.path, shown);
  const bool is_json = !folder.exists() && EndsWith(shown, ".json");
  const std::string report = is_json ? ReadLog(input.path, shown) : "";
  const bool alone = !report.empty() && IsDemoReport(report);
  const bool demo = alone || HoldsDemo(folder);
  if (demo && !IsDemoName(c.name)) c.name = "llm_demo_" + c.name;
  for (const auto& [name, code] : input.return_codes) {
    if (name != c.name) throw NoCase(name);
    c.return_code = code;
  }
  if (demo) {
    c.mode = ModeOf(c.name);
    return alone ? ReadDemoReport(report, shown, std::move(c)) : ReadDemoCase(folder, std::move(c));
  }
  LooseOptions loose{SuiteOptions(c.name), input.offline_lossless_json,
                     input.offline_lossless_online_json, input.bench_stdout_log};
  for (const auto& [name, value] : input.options) SetAnalyzerOption(name, value, loose.options);
  c.mode = loose.options.runtime_mode;
  return ReadBenchLogs(input.path, shown, std::move(c), loose);
}

std::string Shown(const EngineLogsInput& input) {
  std::string shown =
      OnlyUtf8(input.shown_as.empty() ? input.path.generic_string() : input.shown_as);
  while (shown.size() > 1 && shown.back() == '/') shown.pop_back();
  return shown;
}

}  // namespace

std::string_view Name(RuleStatus status) {
  if (status == RuleStatus::kPass) return "pass";
  if (status == RuleStatus::kInconclusive) return "inconclusive";
  return status == RuleStatus::kFail ? "fail" : "not_run";
}

EngineVerdict AnalyzeEngineLogs(const EngineLogsInput& input) {
  EngineVerdict verdict;
  verdict.path = Shown(input);
  std::error_code error;
  if (!fs::exists(input.path, error)) {
    throw Error(Finding::kOpenFailed, "no such file or folder").File(verdict.path);
  }
  AnalyzerOptions checked;
  for (const auto& [name, value] : input.options) SetAnalyzerOption(name, value, checked);
  const LogFolder folder(input.path, verdict.path);
  const SuiteWords words = ReadSuiteWords(folder);
  const bool suite = folder.exists() && !CasesIn(folder, words).empty();
  std::vector<CaseLogs> all;
  if (suite) {
    all = ReadSuite(folder, words, input);
    verdict.notes = words.notes;
  } else {
    all.push_back(ReadLooseLogs(input, verdict.path));
  }
  for (const auto& [name, code] : input.return_codes) {
    const bool known = std::any_of(all.begin(), all.end(), [&, &key = name](const CaseLogs& logs) {
      return logs.suite_case.name == key;
    });
    if (!known) throw NoCase(name);
  }
  BaselineNoise demo_noise;
  for (const CaseLogs& logs : all) {
    const double baseline = BaselineOf(logs);
    if (!(baseline > 0)) continue;
    BaselineNoise& noise = IsDemoName(logs.suite_case.name) ? demo_noise : verdict.baseline_noise;
    noise.tokens_per_second.push_back(baseline);
  }
  std::vector<RuleStatus> statuses;
  verdict.engine_pass = !all.empty();
  for (const CaseLogs& logs : all) {
    const bool demo = IsDemoName(logs.suite_case.name);
    verdict.cases.push_back(Judge(logs, input, demo ? demo_noise : verdict.baseline_noise));
    statuses.push_back(verdict.cases.back().status);
    verdict.engine_pass &= TruthAt(verdict.cases.back().engine, "overall_pass");
    verdict.engine_pass &= logs.evidence.denials.empty();
  }
  verdict.status = Worst(statuses);
  for (const KnownCase& known : kSuiteCases) {
    const bool present = std::any_of(verdict.cases.begin(), verdict.cases.end(),
                                     [&](const EngineCase& c) { return c.name == known.name; });
    if (suite && !present) verdict.absent_cases.emplace_back(known.name);
  }
  const auto noise = verdict.baseline_noise.relative();
  if (noise) {
    verdict.notes.push_back(fmt::format(
        "the baselines of {} cases ran unchanged between {:.4g} and {:.4g} tokens/s: a difference "
        "below {:.1f}% says nothing",
        verdict.baseline_noise.tokens_per_second.size(),
        *std::min_element(verdict.baseline_noise.tokens_per_second.begin(),
                          verdict.baseline_noise.tokens_per_second.end()),
        *std::max_element(verdict.baseline_noise.tokens_per_second.begin(),
                          verdict.baseline_noise.tokens_per_second.end()),
        100 * *noise));
  }
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

}  // namespace kv::gate
