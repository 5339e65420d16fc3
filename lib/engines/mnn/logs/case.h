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

// What lies in the folder of one case, read and ready to be judged.
struct CaseLogs {
  SuiteCase suite_case;
  AnalyzerOptions options;   // what the suite, or the case's own report, applied
  GateBullets bullets = {};  // the engine's words: of summary.md, or made anew
  std::optional<RuntimeFacts> facts = {};
  BenchLogs bench = {};
  Json report = Json::object();  // of llm_demo: the engine's report, or made anew
  bool report_missing = false;
  std::string report_trouble = {};  // why one that is there cannot be read
  std::string code_place = {};      // where the return code was found
  Evidence evidence = {};
  std::vector<std::string> notes = {};
};

struct LooseOptions {
  AnalyzerOptions options;
  std::filesystem::path offline_upper, offline_online, bench_stdout;
};

CaseLogs ReadRuntimeCase(const LogFolder& folder, SuiteCase suite_case);
CaseLogs ReadDemoCase(const LogFolder& folder, SuiteCase suite_case);
// Bench logs, CSV or JSON without a suite: a folder or one file. Throws kMissingRecord if there is
// no row in them, and no sign that one was begun.
CaseLogs ReadBenchLogs(const std::filesystem::path& path, const std::string& shown,
                       SuiteCase suite_case, const LooseOptions& loose);
// The report alone, without the folder that it was written into.
CaseLogs ReadDemoReport(std::string text, const std::string& shown, SuiteCase suite_case);
bool IsDemoReport(std::string_view text);
// Whether a folder holds what llm_demo's runner writes.
bool HoldsDemo(const LogFolder& folder);
// The checks of the suite's shell on the engine's own lines.
void AddLineRules(const CaseLogs& logs, const AnalyzerOptions& options, gate::CaseResult& result);
// What fails a case whatever its figures say: each kind of evidence is a rule.
void AddEvidenceRules(const CaseLogs& logs, const AnalyzerOptions& options,
                      gate::CaseResult& result);

}  // namespace kv::mnn::logs
