// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/core/base/json.h"

namespace kv::mnn::logs {
namespace {

constexpr const char* kStdout = "bench_stdout.log";
constexpr const char* kCsv = "h2o_metrics.csv";
constexpr const char* kManifest = "manifest.json";
constexpr size_t kMaxFailures = 8;

// Why a log of the bench has no row, or fewer than it began.
void CheckRows(const std::string& text, const std::string& shown, Evidence& evidence) {
  const TableState state = StateOfTable(text);
  if (state.rows > 0 && state.cut == 0) return;
  std::string gap = state.cut > 0      ? fmt::format("{}: {} of its rows are cut", shown, state.cut)
                    : state.has_header ? shown + ": it ends after the header of its table"
                    : Strip(text).empty() ? shown + ": empty"
                                          : shown + ": it has no table";
  const std::string last = LastWords(text);
  evidence.gaps.Add(last.empty() ? gap : fmt::format("{}; its last words: '{}'", gap, last));
}

bool HasTable(const std::string& text) {
  bool has_line = false;
  ForEachLine(text, [&](std::string_view line) { has_line |= StartsWith(Strip(line), "|"); });
  return has_line;
}

std::string BaseOf(const std::string& path) { return path.substr(path.find_last_of("/\\") + 1); }

std::string NameOf(const Json& run, size_t index) {
  return OnlyUtf8(TextAt(run, "run_id", fmt::format("{} of the list", index + 1)));
}

// The names that a run's log may have.
std::vector<std::string> LogNames(const Json& run) {
  const std::string log = TextAt(run, "log"), id = TextAt(run, "run_id");
  if (!log.empty()) return {BaseOf(log)};
  if (id.empty()) return {};
  // run_0001_p512_g128_... is also written as run_0001.log.
  return {id + ".log", id.substr(0, id.find('_', id.find('_') + 1)) + ".log"};
}

}  // namespace

bool IsBenchLog(std::string_view name) {
  return EndsWith(name, ".log") && !EndsWith(name, "stdout.log") &&
         !EndsWith(name, ".stderr.log") && !EndsWith(name, ".console.log");
}

void BenchLogs::AddStdout(const std::string& text, const std::string& shown, Evidence& evidence) {
  has_stdout = true;
  was_begun |= !LastWords(text).empty();
  ScanInvalidLines(text, shown, invalid);
  evidence.damage.AddBench(text, shown);
  ScanLosslessLines(text, lossless);
}

void BenchLogs::AddLog(const std::string& text, const std::string& shown, Evidence& evidence) {
  ++logs;
  was_begun |= HasTable(text) || !LastWords(text).empty();
  try {
    table.AddMarkdown(text, shown);
    CheckRows(text, shown, evidence);
  } catch (Error& error) {
    error.File(shown);
    throw;
  }
  ScanInvalidLines(text, shown, invalid);
  evidence.damage.AddBench(text, shown);
  ScanLosslessLines(text, lossless);
}

void BenchLogs::AddLogsIn(const LogFolder& folder, bool only_bench, Evidence& evidence) {
  for (const std::string& name : folder.FilesLike(IsLog)) {
    if (name == kStdout && has_stdout) continue;
    const std::string text = *folder.Text(name), shown = folder.Shown(name);
    const bool is_bench = IsBenchLog(name);
    if (is_bench && (only_bench || HasTable(text))) {
      AddLog(text, shown, evidence);
      continue;
    }
    // The analyzer looks for broken lines in every *.log of the bench's folder.
    if (only_bench && EndsWith(name, ".log")) ScanInvalidLines(text, shown, invalid);
    evidence.damage.AddBench(text, shown);
  }
}

void BenchLogs::AddManifest(const LogFolder& folder, Evidence& evidence) {
  const auto text = folder.Text(kManifest);
  if (!text) return;
  const std::string shown = folder.Shown(kManifest);
  Json list;
  try {
    list = ParseJson(OnlyUtf8(*text), shown);
  } catch (const Error& error) {
    return evidence.gaps.Add(error.what());
  }
  if (list.is_object() && list.contains("runs")) list = Json(list["runs"]);
  if (!list.is_array() || list.empty()) return evidence.gaps.Add(shown + ": it lists no runs");
  was_begun = true;
  const LogFolder inside = folder.Sub("logs");
  bool all_named = true;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& run = list[i];
    const Json code = run.is_object() ? run.value("return_code", Json()) : Json();
    if (!code.is_number()) {
      evidence.gaps.Add(
          fmt::format("{}: run {} has return_code {}", shown, NameOf(run, i), ShowJson(code)));
    } else if (code.get<double>() != 0) {
      ++failed_runs;
      if (failures.size() < kMaxFailures) {
        failures.push_back(
            fmt::format("run {} returned {:.0f}", NameOf(run, i), code.get<double>()));
      }
    }
    const std::vector<std::string> names = LogNames(run);
    const bool is_there = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return folder.Has(name) || inside.Has(name);
    });
    all_named &= is_there;
    if (!names.empty() && !is_there) {
      evidence.gaps.Add(fmt::format("{}: the log of run {}, {}, is not there", shown,
                                    NameOf(run, i), OnlyUtf8(names.back())));
    }
  }
  runs += list.size();
  if (!all_named && list.size() > logs && (logs > 0 || table.size() < list.size())) {
    evidence.gaps.Add(
        fmt::format("{} lists {} runs, but {} logs are there", shown, list.size(), logs));
  } else if (logs > 0 && list.size() > table.size()) {
    evidence.gaps.Add(fmt::format("{} lists {} runs, but their logs have {} rows", shown,
                                  list.size(), table.size()));
  }
}

void BenchLogs::AddCsv(const LogFolder& folder, Evidence& evidence) {
  const auto text = folder.Text(kCsv);
  if (!text) return;
  BenchTable csv = BenchTable::FromCsv(*text);
  if (logs > 0 && csv.size() > table.size()) {
    evidence.gaps.Add(fmt::format("{} has {} rows, but the logs beside it have {}",
                                  folder.Shown(kCsv), csv.size(), table.size()));
  }
  if (table.size() == 0) table = std::move(csv);
}

void BenchLogs::AddResults(const LogFolder& folder) {
  for (const std::string& name : folder.Files()) {
    const bool other = StartsWith(name, "offline_") || name == kManifest;
    if (!EndsWith(name, ".json") || other) continue;
    table.AddJson(*folder.Text(name), folder.Shown(name));
  }
}

void ReadBench(const LogFolder& folder, BenchKind kind, BenchLogs& bench, Evidence& evidence) {
  const auto text = folder.Text(kStdout);
  if (text && !bench.has_stdout) bench.AddStdout(*text, folder.Shown(kStdout), evidence);
  bench.AddLogsIn(folder.Sub("logs"), true, evidence);
  bench.AddLogsIn(folder, bench.logs == 0 && kind != BenchKind::kBaseline, evidence);
  if (kind == BenchKind::kLoose) bench.AddResults(folder);
  bench.AddCsv(folder, evidence);
  bench.AddManifest(folder, evidence);
  CheckCells(bench.table, evidence);
}

BenchTable ReadBaselineTable(const LogFolder& folder, Evidence& evidence) {
  BenchLogs baseline;
  if (folder.exists()) ReadBench(folder, BenchKind::kBaseline, baseline, evidence);
  return std::move(baseline.table);
}

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

}  // namespace kv::mnn::logs
