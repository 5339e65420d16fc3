// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/engine_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/base/error.h"

namespace kv::gate {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNotes = 8;
constexpr const char* kBenchStdout = "bench_stdout.log";

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

// Runs of the bench's manifest that did not end well.
void ReadManifest(const LogFolder& folder, CaseLogs& logs) {
  const auto text = folder.Text("manifest.json");
  if (!text) return;
  const Json runs = ParseJson(OnlyUtf8(*text), folder.Shown("manifest.json"));
  if (!runs.is_array()) return;
  logs.bench_runs = runs.size();
  for (const Json& run : runs) {
    const double code = NumberAt(run, "return_code");
    if (code == 0) continue;
    ++logs.failed_runs;
    if (logs.notes.size() >= kMaxNotes) continue;
    logs.notes.push_back(
        fmt::format("run {} returned {:.0f}", TextAt(run, "run_id", "without a name"), code));
  }
}

// Whether the settings can reach the target at all: no plan keeps less than its floor.
void NoteFeasibility(const GateFigures& figures, std::vector<std::string>& notes) {
  size_t unreachable = 0;
  double ceiling = HUGE_VAL;
  for (const AnalyzerRow& row : figures.rows) {
    const double keep = std::max({row.floor_keep, row.quantized_keep, 1e-9});
    if (1 / keep + 1e-6 >= figures.options.lossy_target) continue;
    ++unreachable;
    ceiling = std::min(ceiling, 1 / keep);
  }
  if (unreachable == 0) return;
  notes.push_back(fmt::format(
      "{} of {} rows cannot reach the lossy target {:.4g}: sink, recent and block settings keep "
      "so much that at most {:.4g} is possible",
      unreachable, figures.rows.size(), figures.options.lossy_target, ceiling));
}

// The figures of a table, and the report that the analyzer would write of it.
void Analyse(const BenchLogs& bench, const BenchTable* baseline,
             const std::optional<OfflineRatio>& upper, const std::optional<OfflineRatio>& online,
             CaseLogs& logs) {
  logs.facts = FactsOfTable(bench.table, baseline);
  // Without a baseline of its own, the engine's rule: the best row of the same-batch baseline.
  if (baseline != nullptr && !(logs.options.decode_baseline > 0)) {
    logs.options.decode_baseline = FactsOfTable(*baseline, nullptr).decode.most.value_or(0);
    logs.options.decode_baseline_source = "same_batch";
    logs.options.decode_baseline_samples = 1;
  }
  const GateFigures figures = Analyze(bench.table, logs.options, upper, online, bench.invalid);
  logs.gate_markdown = GateMarkdown(figures);
  NoteFeasibility(figures, logs.notes);
}

}  // namespace

bool IsBenchLog(std::string_view name) {
  return EndsWith(name, ".log") && !EndsWith(name, "stdout.log") &&
         !EndsWith(name, ".stderr.log") && !EndsWith(name, ".console.log");
}

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
  ReadManifest(folder, logs);
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
      const bool other = StartsWith(name, "offline_") || name == "manifest.json";
      if (!EndsWith(name, ".json") || other) continue;
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
  ReadManifest(folder, logs);
  Analyse(bench, baseline.size() > 0 ? &baseline : nullptr, upper, online, logs);
  logs.bullets = ParseGateBullets(logs.gate_markdown);
  logs.suite_case.summary_text = logs.gate_markdown;
  return logs;
}

namespace {

// A count of bad things that must be 0, or of good ones that must not.
EngineRule CountRule(std::string_view metric, std::string_view op, uint64_t count,
                     std::string_view reason) {
  EngineRule rule;
  rule.metric = metric;
  rule.op = op;
  rule.limit = 0;
  rule.value = static_cast<double>(count);
  rule.status = (op == ">") == (count > 0) ? RuleStatus::kPass : RuleStatus::kFail;
  if (rule.status == RuleStatus::kFail) rule.reason = reason;
  return rule;
}

}  // namespace

void AddLineRules(const CaseLogs& logs, const AnalyzerOptions& options, EngineCase& engine_case) {
  const LosslessLines& lines = logs.lossless;
  const bool expected = logs.has_stdout && logs.suite_case.name != "runtime_baseline" &&
                        (options.runtime_mode == "full" || options.runtime_mode == "store");
  if (logs.bench_runs > 0) {
    engine_case.rules.push_back(
        CountRule("bench_runs_failed", "<=", logs.failed_runs, "runs of manifest.json failed"));
  }
  if (expected || lines.count > 0) {
    engine_case.rules.push_back(
        CountRule("h2o_lossless_lines", ">", lines.count,
                  "no [H2O-LOSSLESS] line: the lossless runtime never ran"));
  }
  if (lines.count == 0) return;
  engine_case.rules.push_back(CountRule("h2o_lossless_lines_of_192_tokens",
                                        "<=", lines.of_192_tokens,
                                        "an engine that still groups 192 tokens"));
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
