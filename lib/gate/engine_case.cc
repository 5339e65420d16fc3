// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/engine_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/base/error.h"
#include "lib/gate/engine_demo.h"

namespace kv::gate {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRuns = 4096;
constexpr size_t kMaxNotes = 8;
constexpr const char* kBenchStdout = "bench_stdout.log";

// Logs of llm_bench; transcripts of other programs lie beside them.
bool IsBenchLog(std::string_view name) {
  return EndsWith(name, ".log") && !EndsWith(name, "stdout.log") &&
         !EndsWith(name, ".stderr.log") && !EndsWith(name, ".console.log");
}

// What is read of all logs of a case.
struct BenchLogs {
  BenchTable table;
  InvalidLines invalid;
  LosslessLines lossless;
  bool has_stdout = false;

  void AddStdout(const std::string& text, const std::string& shown) {
    has_stdout = true;
    ScanInvalidLines(text, shown, invalid);
    ScanLosslessLines(text, lossless);
  }
  void AddLog(const std::string& text, const std::string& shown) {
    try {
      table.AddMarkdown(text, shown);
    } catch (Error& error) {
      error.File(shown);
      throw;
    }
    ScanInvalidLines(text, shown, invalid);
    ScanLosslessLines(text, lossless);
  }
  void AddLogsIn(const LogFolder& folder) {
    for (const std::string& name : folder.Files()) {
      if (IsBenchLog(name)) AddLog(*folder.Text(name), folder.Shown(name));
    }
  }
};

std::optional<OfflineRatio> ReadOffline(const LogFolder& folder, const std::string& name,
                                        std::vector<std::string>& notes) {
  const auto text = folder.Text(name);
  if (!text) return std::nullopt;
  try {
    return ParseOfflineRatio(*text, folder.Shown(name));
  } catch (const Error& error) {
    notes.push_back(error.what());
    return std::nullopt;
  }
}

BenchTable ReadTable(const LogFolder& folder, const std::string& csv) {
  BenchTable table;
  const LogFolder logs = folder.Sub("logs");
  for (const std::string& name : logs.Files()) {
    if (IsBenchLog(name)) table.AddMarkdown(*logs.Text(name), logs.Shown(name));
  }
  if (table.size() > 0) return table;
  const auto text = folder.Text(csv);
  return text ? BenchTable::FromCsv(*text) : table;
}

// Where the engine's report and the logs that it was made of disagree.
void CompareReports(const GateBullets& written, const GateBullets& made,
                    std::vector<std::string>& notes) {
  for (const auto& [key, value] : made) {
    const auto found = written.find(key);
    const bool is_figure = EndsWith(key, "_best") || EndsWith(key, "_pass") ||
                           EndsWith(key, "_best_us") || key == "decode_gate_tps";
    if (!is_figure || found == written.end() || found->second == value) continue;
    if (notes.size() >= kMaxNotes) return;
    notes.push_back(fmt::format("summary.md says {} {}, the logs beside it give {}", key,
                                found->second, value));
  }
}

// The figures of a table, and the report that the analyzer would write of it.
void Analyse(const BenchLogs& bench, const BenchTable* baseline,
             const std::optional<OfflineRatio>& upper, const std::optional<OfflineRatio>& online,
             CaseLogs& logs) {
  logs.facts = FactsOfTable(bench.table, baseline);
  logs.gate_markdown =
      GateMarkdown(Analyze(bench.table, logs.options, upper, online, bench.invalid));
}

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

CaseLogs ReadRuntimeCase(const LogFolder& folder, SuiteCase suite_case) {
  CaseLogs logs{std::move(suite_case), {}};
  SuiteCase& c = logs.suite_case;
  c.summary_text = folder.Text("summary.md");
  logs.bullets = ParseGateBullets(c.summary_text.value_or(""));
  logs.report_missing = logs.bullets.empty();
  logs.options = OptionsOfReport(logs.bullets, SuiteOptions(c.name));

  BenchLogs bench;
  if (const auto text = folder.Text(kBenchStdout))
    bench.AddStdout(*text, folder.Shown(kBenchStdout));
  bench.AddLogsIn(folder.Sub("logs"));
  if (bench.table.size() == 0) {
    if (const auto csv = folder.Text("h2o_metrics.csv")) bench.table = BenchTable::FromCsv(*csv);
  }
  logs.lossless = bench.lossless;
  logs.has_stdout = bench.has_stdout;
  if (bench.table.size() > 0) {
    const BenchTable baseline = ReadTable(folder.Sub("baseline_batch"), "h2o_metrics.csv");
    const auto upper = ReadOffline(folder, "offline_lossless_upper.json", logs.notes);
    const auto online = ReadOffline(folder, "offline_lossless_online_grouped.json", logs.notes);
    Analyse(bench, baseline.size() > 0 ? &baseline : nullptr, upper, online, logs);
    const GateBullets made = ParseGateBullets(logs.gate_markdown);
    CompareReports(logs.bullets, made, logs.notes);
    if (logs.bullets.empty()) logs.bullets = made;
  } else if (!logs.bullets.empty()) {
    logs.facts = FactsOfReport(*c.summary_text);
  }
  return logs;
}

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

CaseLogs ReadBenchLogs(const fs::path& path, const std::string& shown, SuiteCase suite_case,
                       const LooseOptions& loose) {
  CaseLogs logs{std::move(suite_case), loose.options};
  const LogFolder folder(path, shown);
  BenchLogs bench;
  std::optional<OfflineRatio> upper, online;
  if (!loose.bench_stdout.empty()) {
    const std::string name = loose.bench_stdout.generic_string();
    bench.AddStdout(ReadLog(loose.bench_stdout, name), name);
  }
  if (folder.exists()) {
    const auto text = folder.Text(kBenchStdout);
    if (text && loose.bench_stdout.empty()) bench.AddStdout(*text, folder.Shown(kBenchStdout));
    bench.AddLogsIn(folder);
    bench.AddLogsIn(folder.Sub("logs"));
    for (const std::string& name : folder.Files()) {
      if (!EndsWith(name, ".json") || StartsWith(name, "offline_")) continue;
      bench.table.AddJson(*folder.Text(name), folder.Shown(name));
    }
    const auto csv = folder.Text("h2o_metrics.csv");
    if (bench.table.size() == 0 && csv) bench.table = BenchTable::FromCsv(*csv);
    upper = ReadOffline(folder, "offline_lossless_upper.json", logs.notes);
    online = ReadOffline(folder, "offline_lossless_online_grouped.json", logs.notes);
  } else {
    const std::string text = ReadLog(path, shown);
    if (EndsWith(shown, ".csv")) {
      bench.table = BenchTable::FromCsv(text);
    } else if (EndsWith(shown, ".json") || EndsWith(shown, ".jsonl")) {
      bench.table.AddJson(text, shown);
    } else {
      bench.AddLog(text, shown);
    }
  }
  const auto offline = [](const fs::path& file) {
    const std::string name = file.generic_string();
    return ParseOfflineRatio(ReadLog(file, name), name);
  };
  if (!loose.offline_upper.empty()) upper = offline(loose.offline_upper);
  if (!loose.offline_online.empty()) online = offline(loose.offline_online);
  if (bench.table.size() == 0) {
    throw Error(Finding::kMissingRecord,
                "no row of llm_bench, no case of the suite and no run of llm_demo in it")
        .File(shown);
  }
  const BenchTable baseline = ReadTable(folder.Sub("baseline_batch"), "h2o_metrics.csv");
  logs.lossless = bench.lossless;
  logs.has_stdout = bench.has_stdout;
  Analyse(bench, baseline.size() > 0 ? &baseline : nullptr, upper, online, logs);
  logs.bullets = ParseGateBullets(logs.gate_markdown);
  logs.suite_case.summary_text = logs.gate_markdown;
  return logs;
}

void AddLineRules(const CaseLogs& logs, const AnalyzerOptions& options, EngineCase& engine_case) {
  const LosslessLines& lines = logs.lossless;
  const bool expected = logs.has_stdout && logs.suite_case.name != "runtime_baseline" &&
                        (options.runtime_mode == "full" || options.runtime_mode == "store");
  if (expected || lines.count > 0) {
    EngineRule rule;
    rule.metric = "h2o_lossless_lines";
    rule.op = ">";
    rule.limit = 0;
    rule.value = static_cast<double>(lines.count);
    rule.status = lines.count > 0 ? RuleStatus::kPass : RuleStatus::kFail;
    if (lines.count == 0) rule.reason = "no [H2O-LOSSLESS] line: the lossless runtime never ran";
    engine_case.rules.push_back(std::move(rule));
  }
  if (lines.count == 0) return;
  EngineRule grouping;
  grouping.metric = "h2o_lossless_lines_of_192_tokens";
  grouping.op = "<=";
  grouping.limit = 0;
  grouping.value = static_cast<double>(lines.of_192_tokens);
  grouping.status = lines.of_192_tokens == 0 ? RuleStatus::kPass : RuleStatus::kFail;
  if (lines.of_192_tokens > 0) grouping.reason = "an engine that still groups 192 tokens";
  engine_case.rules.push_back(std::move(grouping));
  Json layers = Json::array();
  for (const LosslessLines::Layer& layer : lines.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"lines", layer.lines},
                      {"ratio", layer.last_ratio},
                      {"fallbacks", layer.fallbacks}});
  }
  if (engine_case.true_figures.is_null()) engine_case.true_figures = Json::object();
  engine_case.true_figures["layers"] = std::move(layers);
}

}  // namespace kv::gate
