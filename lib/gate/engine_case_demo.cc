// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "lib/base/error.h"
#include "lib/gate/engine_case.h"
#include "lib/gate/engine_demo.h"

namespace kv::gate {
namespace {

constexpr size_t kMaxRuns = 4096;
constexpr size_t kMaxNotes = 8;

std::optional<Json> ReadObject(const LogFolder& folder, const std::string& name) {
  const auto text = folder.Text(name);
  if (!text) return std::nullopt;
  Json document = ParseJson(OnlyUtf8(*text), folder.Shown(name));
  if (!document.is_object()) {
    throw Error(Finding::kBadText, "expected a JSON object").File(folder.Shown(name));
  }
  return document;
}

Json ReadRuns(const std::string& text, const std::string& shown) {
  Json rows = Json::array();
  ForEachLine(text, [&](std::string_view line) {
    if (Strip(line).empty()) return;
    if (rows.size() == kMaxRuns) {
      throw Error(Finding::kLimit, fmt::format("more than {} runs", kMaxRuns)).File(shown);
    }
    rows.push_back(ParseJson(OnlyUtf8(line), shown));
  });
  return rows;
}

// A *_summary.json, else the same figures from *_runs.jsonl; named as printed.
std::optional<std::pair<Json, std::string>> ReadDemoSummary(const LogFolder& folder,
                                                            const std::string& tag) {
  for (const LogFolder& place : {folder.Sub(tag), folder}) {
    const std::string summary = tag + "_summary.json", runs = tag + "_runs.jsonl";
    if (auto document = ReadObject(place, summary)) return {{*document, place.Shown(summary)}};
    if (const auto text = place.Text(runs)) {
      return {{SummariseBuckets(ReadRuns(*text, place.Shown(runs))), place.Shown(runs)}};
    }
  }
  return std::nullopt;
}

// Runs without a runner around them: PROMPT.jsonl metrics and PROMPT.stdout.log transcripts.
Json LooseRuns(const LogFolder& folder) {
  std::map<std::string, DemoRunFiles> by_prompt;
  std::vector<std::unique_ptr<std::string>> texts;
  const auto keep = [&](const std::string& name) {
    texts.push_back(std::make_unique<std::string>(*folder.Text(name)));
    return std::string_view(*texts.back());
  };
  for (const std::string& name : folder.Files()) {
    for (const char* suffix : {".stdout.log", ".stderr.log", ".jsonl"}) {
      if (!EndsWith(name, suffix) || by_prompt.size() == kMaxRuns) continue;
      const std::string prompt = name.substr(0, name.size() - std::string_view(suffix).size());
      DemoRunFiles& run = by_prompt[prompt];
      run.run_tag = "candidate";
      run.prompt_file = prompt + ".txt";
      const bool is_metrics = EndsWith(name, ".jsonl");
      auto& text = is_metrics                      ? run.metrics_jsonl
                   : EndsWith(name, ".stdout.log") ? run.standard_output
                                                   : run.standard_error;
      auto& path = is_metrics                      ? run.metrics_path
                   : EndsWith(name, ".stdout.log") ? run.stdout_log
                                                   : run.stderr_log;
      text = keep(name);
      path = folder.Shown(name);
    }
  }
  Json rows = Json::array();
  for (const auto& [prompt, run] : by_prompt) {
    rows.push_back(DemoRun(run, static_cast<int64_t>(rows.size()) + 1));
  }
  return rows;
}

void CompareDemoReports(const Json& written, const Json& made, std::vector<std::string>& notes) {
  for (const auto& item : made.items()) {
    if (!item.value().is_number() || !written.contains(item.key())) continue;
    const double said = NumberAt(written, item.key()), is = item.value().get<double>();
    if (std::abs(said - is) <= 1e-9 * std::max(1.0, std::abs(is))) continue;
    if (notes.size() >= kMaxNotes) return;
    notes.push_back(fmt::format("llm_demo_report.json says {} {}, the summaries give {}",
                                item.key(), said, is));
  }
}

}  // namespace

bool HoldsDemo(const LogFolder& folder) {
  if (folder.Text("llm_demo_report.json") || ReadDemoSummary(folder, "candidate")) return true;
  const std::vector<std::string> files = folder.Files();
  return std::none_of(files.begin(), files.end(), IsBenchLog) &&
         std::any_of(files.begin(), files.end(), [](const std::string& name) {
           return EndsWith(name, ".jsonl") || EndsWith(name, ".stdout.log");
         });
}

CaseLogs ReadDemoCase(const LogFolder& folder, SuiteCase suite_case) {
  CaseLogs logs{std::move(suite_case), AnalyzerOptions{}};
  SuiteCase& c = logs.suite_case;
  c.report_text = folder.Text("llm_demo_report.json");
  logs.report_missing = !c.report_text.has_value();
  if (c.report_text) {
    try {
      logs.report = *ReadObject(folder, "llm_demo_report.json");
    } catch (const Error& error) {
      logs.notes.push_back(error.what());
      logs.report_missing = true;
    }
  }
  const auto baseline = ReadDemoSummary(folder, "baseline");
  auto candidate = ReadDemoSummary(folder, "candidate");
  if (!candidate && !c.report_text) {
    const Json rows = LooseRuns(folder);
    if (!rows.empty()) candidate = {{SummariseBuckets(rows), folder.shown()}};
  }
  if (!candidate) return logs;
  DemoOptions options;
  options.decode_drop_target = NumberAt(logs.report, "decode_drop_target", 0.08);
  const Json none = {{"overall_pass", true}};
  const Json made = DemoReport(baseline ? baseline->first : none, baseline ? baseline->second : "",
                               candidate->first, candidate->second, options);
  if (!logs.report.empty()) {
    CompareDemoReports(logs.report, made, logs.notes);
  } else {
    logs.report = made;
    logs.gate_markdown = DemoReportText(made);
  }
  return logs;
}

}  // namespace kv::gate
