// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The logs of the engine's tools: everything at a path, read case by case, and then judged.
#pragma once  // implemented by logs.cc, case.cc, case_demo.cc, reading.cc

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/engines/mnn/logs/suite.h"
#include "lib/engines/mnn/logs/truth.h"
#include "lib/study/gate/result.h"

namespace kv::mnn::logs {

struct EngineLogsInput {
  // The output of the engine's suite (case folders, *.console.log), or a folder or file of bench
  // logs: llm_bench tables or JSON, CSV, metrics jsonl, llm_demo stdout.
  std::filesystem::path path;
  // The path as reports print it; empty: as given.
  std::string shown_as = {};
  // Options of the analyzer by name. They override those that the suite passes for a case.
  std::vector<std::pair<std::string, std::string>> options = {};
  // The return codes of cases. A case without one here counts as having returned 0.
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
  bool has_stdout = false;  // true: a transcript exists, which should hold [H2O-LOSSLESS] lines
  size_t logs = 0;          // number of logs of the bench that were read
  bool was_begun = false;   // true: some log shows that a run began, even without rows
  // Number of the manifest's runs, and of those that did not end well.
  uint64_t runs = 0, failed_runs = 0;
  std::vector<std::string> failures = {};
};
// Returns true if the file name is that of an llm_bench log. Other programs leave their transcripts
// in the same folder.
bool IsBenchLog(std::string_view name);
// Returns true if the case is a run of llm_demo, by its name.
bool IsDemoName(std::string_view name);

// Everything in the folder of one case, read and ready to be judged.
struct CaseLogs {
  SuiteCase suite_case;
  AnalyzerOptions options;   // options that the suite, or the case's own report, applied
  GateBullets bullets = {};  // the engine's: from summary.md, or computed again
  std::optional<RuntimeFacts> facts = {};
  BenchLogs bench = {};
  Json report = Json::object();  // for llm_demo: the engine's report, or one made from its runs
  bool report_missing = false;
  std::string report_trouble = {};  // why an existing report cannot be read
  std::optional<Json> row = {};     // row of the suite, if no other document exists
  std::string code_place = {};      // the document that states the return code
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
// Returns true for a folder with the output of llm_demo's runner, or with cases of the suite.
bool HoldsSuite(const std::filesystem::path& path);
bool HoldsDemo(const LogFolder& folder);

// Everything at the path of engine logs, sorted by case and not yet judged.
struct LogsRead {
  std::string shown;  // path in the form that reports print
  std::vector<CaseLogs> cases;
  std::vector<std::string> absent_cases;  // cases of the suite that are missing
  std::vector<std::string> notes;
};
// Throws what AnalyzeEngineLogs throws.
LogsRead ReadEngineLogs(const EngineLogsInput& input);

// Judges the output of the real engine: reproduces its own numbers and verdict, and adds the true
// figures of the same logs.

struct EngineVerdict {
  std::string path;          // path in the form that reports print
  bool engine_pass = false;  // the engine's own verdict on the whole suite
  gate::Status status = gate::Status::kNotRun;
  std::vector<gate::CaseResult> cases;    // without the engine in their specs
  std::vector<std::string> absent_cases;  // cases of the suite without anything to judge
  BaselineNoise baseline_noise;           // noise of the runtime cases
  std::vector<std::string> notes = {};
};

// Throws kOpenFailed, kBadText, kLimit, kMissingRecord (nothing to judge), kUsage (options).
EngineVerdict AnalyzeEngineLogs(const EngineLogsInput& input);

}  // namespace kv::mnn::logs
