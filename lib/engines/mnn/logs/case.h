// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by case.cc, case_demo.cc, reading.cc

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/engines/mnn/logs/suite.h"
#include "lib/engines/mnn/logs/truth.h"

namespace kv::mnn::logs {

struct EngineLogsInput {
  // The output of the engine's suite (case folders, *.console.log), or a folder or file of bench
  // logs: llm_bench tables or JSON, CSV, metrics jsonl, llm_demo stdout.
  std::filesystem::path path;
  // The path as reports print it; empty means as given.
  std::string shown_as = {};
  // Options of the analyzer by its names. They override those that the suite passes for a case.
  std::vector<std::pair<std::string, std::string>> options = {};
  // The return codes of cases. A case that is not named here is taken to have returned 0.
  std::map<std::string, int64_t> return_codes = {};
  // Offline estimates for a folder of bench logs. A suite's folder has its own.
  std::filesystem::path offline_lossless_json = {}, offline_lossless_online_json = {};
  std::filesystem::path bench_stdout_log = {};
};

// The logs of one bench run, read from its folder.
struct BenchLogs {
  BenchTable table;
  InvalidLines invalid;  // counted as the analyzer counts them, in the logs that it reads
  LosslessLines lossless;
  bool has_stdout = false;  // there is a transcript, which should hold [H2O-LOSSLESS] lines
  size_t logs = 0;          // how many logs of the bench were read
  bool was_begun = false;   // some log shows that a run began, even if it has no rows
  // The manifest's runs, and those of them that did not end well.
  uint64_t runs = 0, failed_runs = 0;
  std::vector<std::string> failures = {};
};
// Whether a file name is that of an llm_bench log. Other programs leave their transcripts beside.
bool IsBenchLog(std::string_view name);
// Whether a case is a run of llm_demo, by its name.
bool IsDemoName(std::string_view name);

// Everything in the folder of one case, read and ready to be judged.
struct CaseLogs {
  SuiteCase suite_case;
  AnalyzerOptions options;   // what the suite, or the case's own report, applied
  GateBullets bullets = {};  // the engine's words: of summary.md, or made anew
  std::optional<RuntimeFacts> facts = {};
  BenchLogs bench = {};
  Json report = Json::object();  // for llm_demo: the engine's report, or one made from its runs
  bool report_missing = false;
  std::string report_trouble = {};  // why a report that is there cannot be read
  std::optional<Json> row = {};     // as the suite wrote it, if nothing else is there
  std::string code_place = {};      // the document that says the return code
  Evidence evidence = {};
  std::vector<std::string> notes = {};
};
CaseLogs ReadRuntimeCase(const LogFolder& folder, SuiteCase suite_case);
CaseLogs ReadDemoCase(const LogFolder& folder, SuiteCase suite_case);
// Reads bench logs, CSV or JSON without a suite, from the input's folder or file. Throws
// kMissingRecord if they have no row and show no sign that a run began.
CaseLogs ReadBenchLogs(const EngineLogsInput& input, const std::string& shown, SuiteCase suite_case,
                       const AnalyzerOptions& options);
// Reads a report alone, without the folder that it was written into.
CaseLogs ReadDemoReport(std::string text, const std::string& shown, SuiteCase suite_case);
bool IsDemoReport(std::string_view text);
// True for a folder with what llm_demo's runner writes, or with cases of the suite.
bool HoldsSuite(const std::filesystem::path& path);
bool HoldsDemo(const LogFolder& folder);

// Everything that lies at the path of engine logs, sorted by case and not yet judged.
struct LogsRead {
  std::string shown;  // the path as reports print it
  std::vector<CaseLogs> cases;
  std::vector<std::string> absent_cases;  // the suite's cases that are not there
  std::vector<std::string> notes;
};
// Throws what AnalyzeEngineLogs throws.
LogsRead ReadEngineLogs(const EngineLogsInput& input);

}  // namespace kv::mnn::logs
