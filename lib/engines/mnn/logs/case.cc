// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads everything in the folder of one case: bench logs, the engine's report, offline estimates;
// and finds where they disagree.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/engines/mnn/logs/logs.h"

namespace kv::mnn::logs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStdout = "bench_stdout.log";
constexpr const char* kCsv = "h2o_metrics.csv";
constexpr const char* kManifest = "manifest.json";
constexpr size_t kMaxFailures = 8;
constexpr size_t kMaxNotes = 8;
constexpr double kLeastKeep = 1e-9;  // share for a row that states no kept share
constexpr double kRounding = 1e-6;   // exceeds the error by which the printed share is rounded
constexpr int kDepth = 4;            // depth of the folders of a case that may hold a log
constexpr const char *kUpper = "offline_lossless_upper.json",
                     *kOnline = "offline_lossless_online_grouped.json";

bool HasTable(const std::string& text) {
  bool has_line = false;
  ForEachLine(text, [&](std::string_view line) { has_line |= Strip(line).starts_with("|"); });
  return has_line;
}

std::string StripFolder(const std::string& path) {
  return path.substr(path.find_last_of("/\\") + 1);
}

std::string ReadRunName(const Json& run, size_t index) {
  return OnlyUtf8(TextAt(run, "run_id", fmt::format("{} of the list", index + 1)));
}

// Returns the file names that a run's log may have.
std::vector<std::string> LogNames(const Json& run) {
  const std::string log = TextAt(run, "log"), id = TextAt(run, "run_id");
  if (!log.empty()) return {StripFolder(log)};
  if (id.empty()) return {};
  // The log of run_0001_p512_g128_... may also be named run_0001.log.
  return {id + ".log", id.substr(0, id.find('_', id.find('_') + 1)) + ".log"};
}

// Reads the logs of one bench run.
class BenchReader {
 public:
  BenchReader(BenchLogs& bench, Evidence& evidence) : bench_(bench), evidence_(evidence) {}

  // The kind of folder: a case of the suite; a bench without a suite, which may have JSON results
  // too; or a baseline of the same batch, where a log without a table belongs to another program.
  enum class Kind { kCase, kLoose, kBaseline };
  // Reads bench_stdout.log, logs/, h2o_metrics.csv and manifest.json.
  void Read(const LogFolder& folder, Kind kind) {
    const auto text = folder.Text(kStdout);
    if (text && !bench_.has_stdout) AddStdout(*text, folder.Shown(kStdout));
    AddLogsIn(folder.Sub("logs"), true);
    AddLogsIn(folder, bench_.logs == 0 && kind != Kind::kBaseline);
    for (const std::string& name : folder.Files()) {
      const bool other = name.starts_with("offline_") || name == kManifest;
      if (kind != Kind::kLoose || !name.ends_with(".json") || other) continue;
      bench_.table.AddJson(*folder.Text(name), folder.Shown(name));
    }
    AddCsv(folder);
    AddManifest(folder);
    CheckCells(bench_.table, evidence_);
  }

  void AddStdout(const std::string& text, const std::string& shown) {
    bench_.has_stdout = true;
    bench_.was_begun |= !LastWords(text).empty();
    Scan(text, shown);
  }

  // Adds a log that must have a row; a missing row is a gap in the evidence.
  void AddLog(const std::string& text, const std::string& shown) {
    ++bench_.logs;
    const std::string last = LastWords(text);
    TableState state;
    try {
      bench_.table.AddMarkdown(text, shown, &state);
    } catch (Error& error) {
      error.File(shown);
      throw;
    }
    bench_.was_begun |= state.has_header || !last.empty();
    if (state.rows == 0 || state.cut > 0) {
      std::string gap = state.cut > 0 ? fmt::format("{}: {} of its rows are cut", shown, state.cut)
                        : state.has_header    ? shown + ": it ends after the header of its table"
                        : Strip(text).empty() ? shown + ": empty"
                                              : shown + ": it has no table";
      if (!last.empty()) gap += fmt::format("; its last words: '{}'", last);
      evidence_.gaps.Add(gap);
    }
    Scan(text, shown);
  }

 private:
  void Scan(const std::string& text, const std::string& shown) {
    ScanInvalidLines(text, shown, bench_.invalid);
    evidence_.damage.AddBench(text, shown);
    ScanLosslessLines(text, bench_.lossless);
  }

  // Reads the logs of a folder. If only the bench writes there (`only_bench`), a log without a
  // table is reported as a gap; elsewhere it is only searched for messages about a broken cache.
  void AddLogsIn(const LogFolder& folder, bool only_bench) {
    for (const std::string& name : folder.Files(IsLog)) {
      if (name == kStdout && bench_.has_stdout) continue;
      const std::string text = *folder.Text(name), shown = folder.Shown(name);
      const bool is_bench = IsBenchLog(name);
      if (is_bench && (only_bench || HasTable(text))) {
        AddLog(text, shown);
        continue;
      }
      // The analyzer searches every *.log of the bench's folder for such messages.
      if (only_bench && name.ends_with(".log")) ScanInvalidLines(text, shown, bench_.invalid);
      evidence_.damage.AddBench(text, shown);
    }
  }

  void AddCsv(const LogFolder& folder) {
    const auto text = folder.Text(kCsv);
    if (!text) return;
    BenchTable csv = BenchTable::FromCsv(*text);
    if (bench_.logs > 0 && csv.size() > bench_.table.size()) {
      evidence_.gaps.Add(fmt::format("{} has {} rows, but the logs beside it have {}",
                                     folder.Shown(kCsv), csv.size(), bench_.table.size()));
    }
    if (bench_.table.size() == 0) bench_.table = std::move(csv);
  }

  void AddReturnCode(const Json& run, const std::string& run_name, const std::string& shown) {
    const Json code = run.is_object() ? run.value("return_code", Json()) : Json();
    if (!code.is_number()) {
      evidence_.gaps.Add(
          fmt::format("{}: run {} has return_code {}", shown, run_name, ShowJson(code)));
    } else if (code.get<double>() != 0) {
      ++bench_.failed_runs;
      if (bench_.failures.size() >= kMaxFailures) return;
      bench_.failures.push_back(
          fmt::format("run {} returned {:.0f}", run_name, code.get<double>()));
    }
  }

  void AddManifest(const LogFolder& folder) {
    const auto text = folder.Text(kManifest);
    if (!text) return;
    const std::string shown = folder.Shown(kManifest);
    Json list;
    try {
      list = ParseJson(OnlyUtf8(*text), shown);
    } catch (const Error& error) {
      return evidence_.gaps.Add(error.what());
    }
    if (list.is_object() && list.contains("runs")) list = Json(list["runs"]);
    if (!list.is_array() || list.empty()) return evidence_.gaps.Add(shown + ": it lists no runs");
    bench_.was_begun = true;
    const LogFolder inside = folder.Sub("logs");
    bool all_named = true;
    for (size_t i = 0; i < list.size(); ++i) {
      const Json& run = list[i];
      const std::string run_name = ReadRunName(run, i);
      AddReturnCode(run, run_name, shown);
      const std::vector<std::string> names = LogNames(run);
      const bool is_there = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return folder.Has(name) || inside.Has(name);
      });
      all_named &= is_there;
      if (!names.empty() && !is_there) {
        evidence_.gaps.Add(fmt::format("{}: the log of run {}, {}, is missing", shown, run_name,
                                       OnlyUtf8(names.back())));
      }
    }
    bench_.runs += list.size();
    if (!all_named && list.size() > bench_.logs &&
        (bench_.logs > 0 || bench_.table.size() < list.size())) {
      evidence_.gaps.Add(
          fmt::format("{} lists {} runs, but there are {} logs", shown, list.size(), bench_.logs));
    } else if (bench_.logs > 0 && list.size() > bench_.table.size()) {
      evidence_.gaps.Add(fmt::format("{} lists {} runs, but their logs have {} rows", shown,
                                     list.size(), bench_.table.size()));
    }
  }

  BenchLogs& bench_;
  Evidence& evidence_;
};

// Reads an offline estimate. Returns nothing if there is none; a file that cannot be read is a gap.
std::optional<OfflineRatio> ReadOffline(const LogFolder& folder, const std::string& name,
                                        Evidence& evidence) {
  try {
    const auto text = folder.Text(name);
    if (text) return ParseOfflineRatio(*text, folder.Shown(name));
  } catch (const Error& error) {
    evidence.gaps.Add(error.what());
  }
  return std::nullopt;
}

// Finds where the engine's report and the logs that it was made from disagree.
void CompareReports(const GateBullets& written, const GateBullets& made,
                    std::vector<std::string>& notes) {
  for (const auto& [key, value] : made) {
    const auto found = written.find(key);
    const bool is_figure = key.ends_with("_best") || key.ends_with("_pass") ||
                           key.ends_with("_best_us") || key == "decode_gate_tps";
    if (!is_figure || found == written.end() || found->second == value) continue;
    if (notes.size() >= kMaxNotes) return;
    notes.push_back(fmt::format("summary.md says {} {}, but the logs beside it give {}", key,
                                found->second, value));
  }
}

// Notes if the settings cannot reach the target at all: no plan keeps less than its floor.
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

// Sets the facts of the bench's table, and returns the bullets that the analyzer would write.
GateBullets Analyse(const BenchTable& baseline, const std::optional<OfflineRatio>& upper,
                    const std::optional<OfflineRatio>& online, CaseLogs& logs) {
  const BenchLogs& bench = logs.bench;
  const bool has_baseline = baseline.size() > 0;
  logs.facts = CollectTableFacts(bench.table, has_baseline ? &baseline : nullptr);
  // Without its own baseline, the engine's rule applies: the best row of the same-batch baseline.
  if (has_baseline && !(logs.options.decode_baseline > 0)) {
    logs.options.decode_baseline = CollectTableFacts(baseline, nullptr).decode.most.value_or(0);
    logs.options.decode_baseline_source = "same_batch";
    logs.options.decode_baseline_samples = 1;
  }
  const GateFigures figures = Analyze(bench.table, logs.options, upper, online, bench.invalid);
  NoteFeasibility(figures, logs.notes);
  return ListGateBullets(figures);
}

// Returns the rules that the analyzer would deny, given these logs.
std::vector<std::string> DeniedByLogs(const GateBullets& written, const GateBullets& made) {
  std::vector<std::string> denied = DeniedBy(made);
  const auto same = [&](const char* key) {
    const auto before = written.find(key), now = made.find(key);
    return before == written.end() || (now != made.end() && now->second == before->second);
  };
  // The verdict cannot be reproduced without the offline estimate that the report was made with.
  if (!same("lossless_selected_source")) {
    const bool ratio_alone = std::all_of(denied.begin(), denied.end(), [](const std::string& key) {
      return key == "overall_pass" || key == "quality_status" || key == "lossless_online_pass";
    });
    if (ratio_alone) denied.clear();
  }
  return denied;
}

// Returns, of the written bullets and those that the logs give, the worse ones.
GateBullets WorseBullets(GateBullets written, const GateBullets& made) {
  for (const auto& [key, value] : made) {
    const bool is_verdict = key.ends_with("_pass") || key.ends_with("_ok");
    if (!is_verdict || value != "false" || key.starts_with("lossless_")) continue;
    written[key] = value;
    if (key != "runtime_metric_columns_ok") continue;
    written["runtime_metric_missing_columns"] = made.at("runtime_metric_missing_columns");
  }
  return written;
}

// Notes if a report is cut or contradicts itself.
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

// Reads the report of a case and its logs. Both are judged, and if they differ the worse counts.
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
    logs.facts = CollectReportFacts(*c.summary_text);
    CheckFigures(ReportAverages(*c.summary_text), shown, logs.evidence);
    return;
  }
  BenchLogs baseline;
  const LogFolder batch = folder.Sub("baseline_batch");
  if (batch.exists()) {
    BenchReader(baseline, logs.evidence).Read(batch, BenchReader::Kind::kBaseline);
  }
  const GateBullets made = Analyse(baseline.table, upper, online, logs);
  CompareReports(logs.bullets, made, logs.notes);
  AddDenial(DeniedByLogs(logs.bullets, made),
            "the engine's analyzer, given the logs in " + c.folder, logs.evidence);
  if (logs.bullets.empty()) {
    logs.bullets = made;
    return;
  }
  const size_t rows = CollectReportFacts(*c.summary_text).rows;
  if (rows > logs.bench.table.size()) {
    logs.evidence.gaps.Add(
        fmt::format("{}/summary.md was made of {} rows, but the logs beside it have {}", c.folder,
                    rows, logs.bench.table.size()));
  }
  logs.bullets = WorseBullets(std::move(logs.bullets), made);
}

// Reads the rows of one file, or the analyzer's report.
void ReadOneFile(const fs::path& path, const std::string& shown, CaseLogs& logs) {
  const std::string text = ReadLog(path, shown);
  logs.bullets = ParseGateBullets(text);
  if (!logs.bullets.empty()) {
    logs.suite_case.summary_text = text;
  } else if (shown.ends_with(".csv")) {
    logs.bench.table = BenchTable::FromCsv(text);
  } else if (shown.ends_with(".json") || shown.ends_with(".jsonl")) {
    logs.bench.table.AddJson(text, shown);
  } else {
    BenchReader(logs.bench, logs.evidence).AddLog(text, shown);
  }
  CheckCells(logs.bench.table, logs.evidence);
}

}  // namespace

bool IsBenchLog(std::string_view name) {
  return name.ends_with(".log") && !name.ends_with("stdout.log") &&
         !name.ends_with(".stderr.log") && !name.ends_with(".console.log");
}

CaseLogs ReadRuntimeCase(const LogFolder& folder, SuiteCase suite_case) {
  CaseLogs logs{std::move(suite_case), {}};
  SuiteCase& c = logs.suite_case;
  c.summary_text = folder.Text("summary.md");
  c.bullets = logs.bullets = ParseGateBullets(c.summary_text.value_or(""));
  logs.report_missing = logs.bullets.empty();
  logs.options = ReadReportOptions(logs.bullets, SuiteOptions(c.name));
  if (!logs.bullets.empty()) logs.notes = LooserOptions(logs.options, SuiteOptions(c.name));
  BenchReader(logs.bench, logs.evidence).Read(folder, BenchReader::Kind::kCase);
  logs.evidence.damage.AddFolder(folder, kDepth);
  const auto upper = ReadOffline(folder, kUpper, logs.evidence);
  const auto online = ReadOffline(folder, kOnline, logs.evidence);
  ReadReportAndLogs(folder, upper, online, logs);
  return logs;
}

CaseLogs ReadBenchLogs(const EngineLogsInput& input, const std::string& shown, SuiteCase suite_case,
                       const AnalyzerOptions& options) {
  CaseLogs logs{std::move(suite_case), options};
  SuiteCase& c = logs.suite_case;
  const LogFolder folder(input.path, shown);
  std::optional<OfflineRatio> upper, online;
  BenchReader reader(logs.bench, logs.evidence);
  if (!input.bench_stdout_log.empty()) {
    const std::string name = input.bench_stdout_log.generic_string();
    reader.AddStdout(ReadLog(input.bench_stdout_log, name), name);
  }
  if (folder.exists()) {
    reader.Read(folder, BenchReader::Kind::kLoose);
    logs.evidence.damage.AddFolder(folder, 0);
    c.summary_text = folder.Text("summary.md");
    logs.bullets = ParseGateBullets(c.summary_text.value_or(""));
    upper = ReadOffline(folder, kUpper, logs.evidence);
    online = ReadOffline(folder, kOnline, logs.evidence);
  } else {
    ReadOneFile(input.path, shown, logs);
  }
  const auto read_offline = [](const fs::path& file, std::optional<OfflineRatio>& offline) {
    const std::string name = file.generic_string();
    if (!file.empty()) offline = ParseOfflineRatio(ReadLog(file, name), name);
  };
  read_offline(input.offline_lossless_json, upper);
  read_offline(input.offline_lossless_online_json, online);
  if (!logs.bench.table.HasColumn(kSpeedColumn) && logs.bullets.empty() && !logs.bench.was_begun) {
    throw Error(Finding::kMissingRecord,
                "no row of llm_bench, no case of the suite and no run of llm_demo in it")
        .File(shown);
  }
  const bool has_report = !logs.bullets.empty();
  if (has_report) logs.options = ReadReportOptions(logs.bullets, logs.options);
  c.bullets = logs.bullets;
  ReadReportAndLogs(folder, upper, online, logs);
  if (!has_report) {
    c.summary_text.reset();
    c.bullets = logs.bullets;
  }
  return logs;
}

}  // namespace kv::mnn::logs
