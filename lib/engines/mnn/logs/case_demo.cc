// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads the folder of an llm_demo case: its report, summaries, and runs without the runner.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/engines/mnn/logs/demo.h"
#include "lib/engines/mnn/logs/logs.h"

namespace kv::mnn::logs {
namespace {

constexpr size_t kMaxRuns = 4096;
constexpr size_t kMostDemoNotes = 8;
constexpr double kDemoTolerance = 1e-9;  // relative, for figures that are summed in another order
constexpr int kDemoDepth = 4;            // depth of the folders of a case that may hold a log
constexpr const char* kReport = "llm_demo_report.json";

Json ParseObject(const std::string& text, const std::string& shown) {
  Json document = ParseJson(OnlyUtf8(text), shown);
  if (!document.is_object()) {
    throw Error(Finding::kBadText, "expected a JSON object").File(shown);
  }
  return document;
}

Json ReadRuns(const std::string& text, const std::string& shown) {
  Json rows = Json::array();
  ForEachLine(text, [&](std::string_view line) {
    if (Strip(line).empty()) return;
    if (rows.size() == kMaxRuns) {
      throw Error(Finding::kLimit, "more than {} runs", kMaxRuns).File(shown);
    }
    rows.push_back(ParseJson(OnlyUtf8(line), shown));
  });
  return rows;
}

// A *_summary.json, or the same figures computed from *_runs.jsonl; named as reports print it.
struct DemoSummary {
  Json document;
  std::string shown;
};
std::optional<DemoSummary> ReadDemoSummary(const LogFolder& folder, const std::string& tag) {
  for (const LogFolder& place : {folder.Sub(tag), folder}) {
    const std::string summary = tag + "_summary.json", runs = tag + "_runs.jsonl";
    if (const auto text = place.Text(summary)) {
      return {{ParseObject(*text, place.Shown(summary)), place.Shown(summary)}};
    }
    if (const auto text = place.Text(runs)) {
      return {{SummariseBuckets(ReadRuns(*text, place.Shown(runs))), place.Shown(runs)}};
    }
  }
  return std::nullopt;
}

// Checks that every run of a summary ended well, that none is missing, and that its figures are
// numbers.
void CheckSummary(const LogFolder& folder, const std::string& tag, const DemoSummary& summary,
                  Evidence& evidence) {
  const auto& [document, shown] = summary;
  CheckFigures(document, shown, evidence);
  const double total = NumberAt(document, "total_runs"), passed = NumberAt(document, "pass_runs");
  if (passed < total) {
    AddDenial({"pass_runs"},
              fmt::format("{}: {:.0f} of {:.0f} runs ended well; it", shown, passed, total),
              evidence);
  }
  const std::string name = tag + "_runs.jsonl";
  const LogFolder own = folder.Sub(tag), place = own.Has(name) ? own : folder;
  const auto text = place.Text(name);
  if (!text) return;
  const Json rows = ReadRuns(*text, place.Shown(name));
  CheckFigures(rows, place.Shown(name), evidence);
  if (static_cast<double>(rows.size()) < total) {
    evidence.gaps.Add(fmt::format("{} reports {:.0f} runs, but {} has {}", shown, total,
                                  place.Shown(name), rows.size()));
  }
  for (const Json& row : rows) {
    const Json code = row.is_object() ? row.value("returncode", Json(0)) : Json();
    if (code.is_number() && code.get<double>() == 0) continue;
    evidence.gaps.Add(fmt::format("{}: a run of {} with returncode {}", place.Shown(name),
                                  OnlyUtf8(TextAt(row, "prompt_file", "no name")), ShowJson(code)));
  }
}

// Reads runs that were started without the runner: PROMPT.jsonl metrics and PROMPT.stdout.log
// transcripts.
Json LooseRuns(const LogFolder& folder, Evidence& evidence) {
  constexpr std::pair<std::string_view, std::string DemoRunFiles::*> kKinds[] = {
      {".stdout.log", &DemoRunFiles::standard_output},
      {".stderr.log", &DemoRunFiles::standard_error},
      {".jsonl", &DemoRunFiles::metrics_jsonl}};
  std::map<std::string, DemoRunFiles> by_prompt;
  for (const std::string& name : folder.Files()) {
    for (const auto& [suffix, text] : kKinds) {
      if (!name.ends_with(suffix) || by_prompt.size() == kMaxRuns) continue;
      const std::string prompt = name.substr(0, name.size() - suffix.size());
      by_prompt[prompt].prompt_file = prompt + ".txt";
      by_prompt[prompt].*text = *folder.Text(name);
    }
  }
  Json rows = Json::array();
  for (const auto& [prompt, run] : by_prompt) {
    rows.push_back(DemoRun(run));
    CheckFigures(rows.back(), folder.Shown(prompt), evidence);
    if (!Strip(run.metrics_jsonl).empty() && rows.back()["h2o_metrics"].empty()) {
      evidence.gaps.Add(folder.Shown(prompt) + ".jsonl: its last line is not a JSON object");
    }
  }
  return rows;
}

void CompareDemoReports(const Json& written, const Json& made, std::vector<std::string>& notes) {
  for (const auto& item : made.items()) {
    if (!item.value().is_number() || !written.contains(item.key())) continue;
    const double said = NumberAt(written, item.key()), is = item.value().get<double>();
    if (std::abs(said - is) <= kDemoTolerance * std::max(1.0, std::abs(is))) continue;
    if (notes.size() >= kMostDemoNotes) return;
    notes.push_back(fmt::format("llm_demo_report.json says {} {}, but the summaries give {}",
                                item.key(), said, is));
  }
}

// Returns nothing for a summary that cannot be read, as if it were missing.
std::optional<DemoSummary> ParseDemoSummary(const LogFolder& folder, const std::string& tag,
                                            Evidence& evidence) {
  try {
    auto summary = ReadDemoSummary(folder, tag);
    if (summary) CheckSummary(folder, tag, *summary, evidence);
    return summary;
  } catch (const Error& error) {
    if (error.finding() != Finding::kBadText) throw;
    evidence.gaps.Add(error.what());
    return std::nullopt;
  }
}

void ReadReport(const std::string& shown, CaseLogs& logs) {
  const SuiteCase& c = logs.suite_case;
  logs.report_missing = !c.report_text.has_value();
  if (!c.report_text) return;
  try {
    logs.report = ParseObject(*c.report_text, shown);
  } catch (const Error& error) {
    logs.report_missing = true;
    logs.report_trouble = error.what();
    return;
  }
  CheckFigures(logs.report, shown, logs.evidence);
  AddDenial(DeniedBy(logs.report), shown, logs.evidence);
}

// Returns the options that the report says were used.
DemoOptions ReadDemoOptions(const Json& report) {
  DemoOptions options;
  options.decode_drop_target = NumberAt(report, "decode_drop_target", options.decode_drop_target);
  const auto ask = [&](const char* key, bool& option) {
    if (report.contains(key)) option = TruthAt(report, key);
  };
  ask("require_runtime_decomp", options.require_runtime_decomp);
  ask("require_decode_cache_hit", options.require_decode_cache_hit);
  ask("require_baseline_decode", options.require_baseline_decode);
  ask("require_bucket_decode_pass", options.require_bucket_decode_pass);
  return options;
}

}  // namespace

bool IsDemoReport(std::string_view text) {
  try {
    const Json report = ParseJson(OnlyUtf8(text), kReport);
    return report.is_object() && report.contains("overall_pass") && report.contains("decode_pass");
  } catch (const Error&) {
    return false;
  }
}

bool HoldsDemo(const LogFolder& folder) {
  if (!folder.exists()) return false;
  if (folder.Has(kReport)) return true;
  for (const LogFolder& place : {folder.Sub("candidate"), folder}) {
    if (place.Has("candidate_summary.json") || place.Has("candidate_runs.jsonl")) return true;
  }
  const std::vector<std::string> files = folder.Files(), logs = folder.Sub("logs").Files();
  return std::none_of(files.begin(), files.end(), IsBenchLog) &&
         std::none_of(logs.begin(), logs.end(), IsBenchLog) &&
         std::any_of(files.begin(), files.end(), [](const std::string& name) {
           return name.ends_with(".jsonl") || name.ends_with(".stdout.log");
         });
}

CaseLogs ReadDemoReport(std::string text, const std::string& shown, SuiteCase suite_case) {
  CaseLogs logs{std::move(suite_case), AnalyzerOptions{}};
  logs.suite_case.report_text = std::move(text);
  ReadReport(shown, logs);
  return logs;
}

CaseLogs ReadDemoCase(const LogFolder& folder, SuiteCase suite_case) {
  CaseLogs logs{std::move(suite_case), AnalyzerOptions{}};
  SuiteCase& c = logs.suite_case;
  c.report_text = folder.Text(kReport);
  ReadReport(folder.Shown(kReport), logs);
  const auto baseline = ParseDemoSummary(folder, "baseline", logs.evidence);
  auto candidate = ParseDemoSummary(folder, "candidate", logs.evidence);
  if (!candidate && !c.report_text) {
    const Json rows = LooseRuns(folder, logs.evidence);
    if (!rows.empty()) candidate = {{SummariseBuckets(rows), folder.shown()}};
  }
  logs.evidence.damage.AddFolder(folder, kDemoDepth);
  if (!candidate) return logs;
  const Json none = {{"overall_pass", true}};
  const Json made =
      DemoReport(baseline ? baseline->document : none, baseline ? baseline->shown : "",
                 candidate->document, candidate->shown, ReadDemoOptions(logs.report));
  if (logs.report.empty()) {
    logs.report = made;
    return logs;
  }
  CompareDemoReports(logs.report, made, logs.notes);
  if (baseline) {
    AddDenial(DeniedBy(made), "the report, recomputed from the runs in " + folder.shown(),
              logs.evidence);
  }
  return logs;
}

}  // namespace kv::mnn::logs
