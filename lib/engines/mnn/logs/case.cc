// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"

namespace kv::mnn::logs {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNotes = 8;
constexpr double kLeastKeep = 1e-9;  // of a row that has none
constexpr double kRounding = 1e-6;   // of the printed share
constexpr int kDepth = 4;            // of folders in that of a case, where a log may lie
constexpr const char *kUpper = "offline_lossless_upper.json",
                     *kOnline = "offline_lossless_online_grouped.json";
// Where the engine's report and the logs that it was made of disagree.
void CompareReports(const GateBullets& written, const GateBullets& made,
                    std::vector<std::string>& notes) {
  for (const auto& [key, value] : made) {
    const auto found = written.find(key);
    const bool is_figure = EndsWith(key, "_best") || EndsWith(key, "_pass") ||
                           EndsWith(key, "_best_us") || key == "decode_gate_tps";
    if (!is_figure || found == written.end() || found->second == value) continue;
    if (notes.size() >= kMaxNotes) return;
    notes.push_back(fmt::format("summary.md says {} {}, but the logs beside it give {}", key,
                                found->second, value));
  }
}

// Whether the settings can reach the target at all: no plan keeps less than its floor.
void NoteFeasibility(const GateFigures& figures, std::vector<std::string>& notes) {
  size_t unreachable = 0;
  double ceiling = HUGE_VAL;
  for (const AnalyzerRow& row : figures.rows) {
    const double keep = std::max({row.floor_keep, row.quantized_keep, kLeastKeep});
    if (1 / keep + kRounding >= figures.options.lossy_target) continue;
    ++unreachable;
    ceiling = std::min(ceiling, 1 / keep);
  }
  if (unreachable == 0) return;
  notes.push_back(fmt::format(
      "{} of {} rows cannot reach the lossy target {:.4g}: sink, recent and block settings keep "
      "so much that at most {:.4g} is possible",
      unreachable, figures.rows.size(), figures.options.lossy_target, ceiling));
}

// Sets the facts of the bench's table, and returns what the analyzer would say of it.
GateBullets Analyse(const BenchTable* baseline, const std::optional<OfflineRatio>& upper,
                    const std::optional<OfflineRatio>& online, CaseLogs& logs) {
  const BenchLogs& bench = logs.bench;
  logs.facts = FactsOfTable(bench.table, baseline);
  // Without a baseline of its own, the engine's rule: the best row of the same-batch baseline.
  if (baseline != nullptr && !(logs.options.decode_baseline > 0)) {
    logs.options.decode_baseline = FactsOfTable(*baseline, nullptr).decode.most.value_or(0);
    logs.options.decode_baseline_source = "same_batch";
    logs.options.decode_baseline_samples = 1;
  }
  const GateFigures figures = Analyze(bench.table, logs.options, upper, online, bench.invalid);
  NoteFeasibility(figures, logs.notes);
  return GateBulletsOf(figures);
}

// What the analyzer, given these logs, says no to.
std::vector<std::string> DeniedByLogs(const GateBullets& written, const GateBullets& made) {
  std::vector<std::string> denied = DeniedBy(made);
  const auto same = [&](const char* key) {
    const auto before = written.find(key), now = made.find(key);
    return before == written.end() || (now != made.end() && now->second == before->second);
  };
  // Without the offline estimate that the report was made with, its verdict cannot be made again.
  if (!same("lossless_selected_source")) {
    const bool ratio_alone = std::all_of(denied.begin(), denied.end(), [](const std::string& key) {
      return key == "overall_pass" || key == "quality_status" || key == "lossless_online_pass";
    });
    if (ratio_alone) denied.clear();
  }
  return denied;
}

// The engine's words where they are worse: those written, or those that the logs beside them give.
GateBullets WorseOf(GateBullets written, const GateBullets& made) {
  for (const auto& [key, value] : made) {
    const bool is_verdict = EndsWith(key, "_pass") || EndsWith(key, "_ok");
    if (!is_verdict || value != "false" || StartsWith(key, "lossless_")) continue;
    written[key] = value;
    if (key != "runtime_metric_columns_ok") continue;
    written["runtime_metric_missing_columns"] = made.at("runtime_metric_missing_columns");
  }
  return written;
}

// A report that was made of more rows than the logs have.
void CheckReportRows(const SuiteCase& c, CaseLogs& logs) {
  const size_t rows = FactsOfReport(*c.summary_text).rows;
  if (rows <= logs.bench.table.size()) return;
  logs.evidence.gaps.Add(
      fmt::format("{}/summary.md was made of {} rows, but the logs beside it have {}", c.folder,
                  rows, logs.bench.table.size()));
}

// Notes where a report is cut or contradicts itself.
void CheckReport(const SuiteCase& c, const std::string& shown, const GateBullets& bullets,
                 Evidence& evidence) {
  if (bullets.empty()) return;
  for (const std::string& key : Contradictions(*c.summary_text)) {
    evidence.gaps.Add(fmt::format("{} contradicts itself: {}", shown, key));
  }
  std::vector<std::string> missing = MissingBullets(bullets);
  if (!ReportAverages(*c.summary_text).contains("Rows")) missing.emplace_back("Rows");
  if (missing.empty()) return;
  evidence.gaps.Add(fmt::format(
      "{} was cut: it lacks {}{}", shown, missing.front(),
      missing.size() == 1 ? "" : fmt::format(" and {} more figures", missing.size() - 1)));
}

// The report of a case and the logs beside it: both are judged, and where they differ the worse.
void ReadReportAndLogs(const LogFolder& folder, const std::optional<OfflineRatio>& upper,
                       const std::optional<OfflineRatio>& online, CaseLogs& logs) {
  SuiteCase& c = logs.suite_case;
  const std::string shown = folder.exists() ? folder.Shown("summary.md") : folder.shown();
  CheckFigures(logs.bullets, shown, logs.evidence);
  CheckReport(c, shown, logs.bullets, logs.evidence);
  AddDenial(DeniedBy(logs.bullets), shown, logs.evidence);
  logs.notes.insert(logs.notes.end(), logs.bench.failures.begin(), logs.bench.failures.end());
  if (logs.bench.table.size() == 0) {
    if (logs.bullets.empty()) return;
    logs.facts = FactsOfReport(*c.summary_text);
    CheckFigures(ReportAverages(*c.summary_text), shown, logs.evidence);
    return;
  }
  const BenchTable baseline = ReadBaselineTable(folder.Sub("baseline_batch"), logs.evidence);
  const GateBullets made = Analyse(baseline.size() > 0 ? &baseline : nullptr, upper, online, logs);
  CompareReports(logs.bullets, made, logs.notes);
  AddDenial(DeniedByLogs(logs.bullets, made),
            "the engine's analyzer, given the logs in " + c.folder, logs.evidence);
  if (logs.bullets.empty()) {
    logs.bullets = made;
  } else {
    CheckReportRows(c, logs);
    logs.bullets = WorseOf(std::move(logs.bullets), made);
  }
}

// Where a report was made with a limit that lets more pass than the suite's own.
void NoteLooseLimits(const AnalyzerOptions& suite, CaseLogs& logs) {
  const AnalyzerOptions& report = logs.options;
  const auto note = [&](const char* name, double applied, double own) {
    logs.notes.push_back(fmt::format(
        "the report was made with {} {:.6g}, but the suite's own is {:.6g}", name, applied, own));
  };
  const auto least = [&](const char* name, double applied, double own) {
    if (applied < own) note(name, applied, own);
  };
  const auto most = [&](const char* name, double applied, double own) {
    if (own >= 0 && (applied < 0 || applied > own)) note(name, applied, own);
  };
  least("lossy_target", report.lossy_target, suite.lossy_target);
  least("lossless_target", report.lossless_target, suite.lossless_target);
  most("decode_drop_target", report.decode_drop_target, suite.decode_drop_target);
  most("max_kv_invalid_log_lines", static_cast<double>(report.max_kv_invalid_log_lines),
       static_cast<double>(suite.max_kv_invalid_log_lines));
  most("max_lossless_queue_peak", report.max_lossless_queue_peak, suite.max_lossless_queue_peak);
  most("max_lossless_fallback", report.max_lossless_fallback, suite.max_lossless_fallback);
  most("max_lossless_decomp_us", report.max_lossless_decomp_us, suite.max_lossless_decomp_us);
  most("max_lossless_async_wait_us", report.max_lossless_async_wait_us,
       suite.max_lossless_async_wait_us);
}

// The rows of one file, or the analyzer's report.
void ReadOneFile(const fs::path& path, const std::string& shown, CaseLogs& logs) {
  const std::string text = ReadLog(path, shown);
  logs.bullets = ParseGateBullets(text);
  if (!logs.bullets.empty()) {
    logs.suite_case.summary_text = text;
  } else if (EndsWith(shown, ".csv")) {
    logs.bench.table = BenchTable::FromCsv(text);
  } else if (EndsWith(shown, ".json") || EndsWith(shown, ".jsonl")) {
    logs.bench.table.AddJson(text, shown);
  } else {
    logs.bench.AddLog(text, shown, logs.evidence);
  }
  CheckCells(logs.bench.table, logs.evidence);
}

}  // namespace

CaseLogs ReadRuntimeCase(const LogFolder& folder, SuiteCase suite_case) {
  CaseLogs logs{std::move(suite_case), {}};
  SuiteCase& c = logs.suite_case;
  c.summary_text = folder.Text("summary.md");
  c.bullets = logs.bullets = ParseGateBullets(c.summary_text.value_or(""));
  logs.report_missing = logs.bullets.empty();
  logs.options = OptionsOfReport(logs.bullets, SuiteOptions(c.name));
  if (!logs.bullets.empty()) NoteLooseLimits(SuiteOptions(c.name), logs);
  ReadBench(folder, BenchKind::kCase, logs.bench, logs.evidence);
  logs.evidence.damage.AddFolder(folder, kDepth);
  const auto upper = ReadOffline(folder, kUpper, logs.evidence);
  const auto online = ReadOffline(folder, kOnline, logs.evidence);
  ReadReportAndLogs(folder, upper, online, logs);
  return logs;
}

CaseLogs ReadBenchLogs(const fs::path& path, const std::string& shown, SuiteCase suite_case,
                       const LooseOptions& loose) {
  CaseLogs logs{std::move(suite_case), loose.options};
  SuiteCase& c = logs.suite_case;
  const LogFolder folder(path, shown);
  std::optional<OfflineRatio> upper, online;
  if (!loose.bench_stdout.empty()) {
    const std::string name = loose.bench_stdout.generic_string();
    logs.bench.AddStdout(ReadLog(loose.bench_stdout, name), name, logs.evidence);
  }
  if (folder.exists()) {
    ReadBench(folder, BenchKind::kLoose, logs.bench, logs.evidence);
    logs.evidence.damage.AddFolder(folder, 0);
    c.summary_text = folder.Text("summary.md");
    logs.bullets = ParseGateBullets(c.summary_text.value_or(""));
    upper = ReadOffline(folder, kUpper, logs.evidence);
    online = ReadOffline(folder, kOnline, logs.evidence);
  } else {
    ReadOneFile(path, shown, logs);
  }
  const auto offline = [](const fs::path& file) {
    const std::string name = file.generic_string();
    return ParseOfflineRatio(ReadLog(file, name), name);
  };
  if (!loose.offline_upper.empty()) upper = offline(loose.offline_upper);
  if (!loose.offline_online.empty()) online = offline(loose.offline_online);
  if (logs.bench.table.size() == 0 && logs.bullets.empty() && !logs.bench.was_begun) {
    throw Error(Finding::kMissingRecord,
                "no row of llm_bench, no case of the suite and no run of llm_demo in it")
        .File(shown);
  }
  c.bullets = logs.bullets;
  const bool has_report = !logs.bullets.empty();
  if (has_report) logs.options = OptionsOfReport(logs.bullets, logs.options);
  ReadReportAndLogs(folder, upper, online, logs);
  if (!has_report) {
    c.summary_text.reset();
    c.bullets = logs.bullets;
  }
  return logs;
}

}  // namespace kv::mnn::logs
