// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/engines/mnn/logs/bench.h"
#include "lib/engines/mnn/logs/files.h"
#include "lib/engines/mnn/logs/truth.h"

namespace kv::mnn::logs {

// Everything in the folder of one case, read and ready to be judged. Implemented by case.cc,
// case_demo.cc (runs of llm_demo), case_row.cc (a row without a folder) and case_rules.cc.
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

struct LooseOptions {
  AnalyzerOptions options;
  std::filesystem::path offline_upper, offline_online, bench_stdout;
};

CaseLogs ReadRuntimeCase(const LogFolder& folder, SuiteCase suite_case);
CaseLogs ReadDemoCase(const LogFolder& folder, SuiteCase suite_case);
// Reads bench logs, CSV or JSON without a suite, from a folder or one file. Throws kMissingRecord
// if they have no row and show no sign that a run began.
CaseLogs ReadBenchLogs(const std::filesystem::path& path, const std::string& shown,
                       SuiteCase suite_case, const LooseOptions& loose);
// Reads a report alone, without the folder that it was written into.
CaseLogs ReadDemoReport(std::string text, const std::string& shown, SuiteCase suite_case);
// Reads a row of the suite's summary.json at `place`, without the folder of its case.
CaseLogs ReadRow(const Json& row, const std::string& place, SuiteCase suite_case);
bool IsDemoReport(std::string_view text);
// Whether a folder holds what llm_demo's runner writes.
bool HoldsDemo(const LogFolder& folder);
// Adds the checks that the suite's shell script makes on the engine's own lines.
void AddLineRules(const CaseLogs& logs, const AnalyzerOptions& options, gate::CaseResult& result);
// Adds a rule for each kind of evidence that fails a case whatever its figures say.
void AddEvidenceRules(const CaseLogs& logs, const AnalyzerOptions& options,
                      gate::CaseResult& result);

}  // namespace kv::mnn::logs
