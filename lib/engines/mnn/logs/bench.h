// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/engines/mnn/logs/evidence.h"
#include "lib/engines/mnn/logs/truth.h"

namespace kv::mnn::logs {

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

  void AddStdout(const std::string& text, const std::string& shown, Evidence& evidence);
  // Adds a log that must have a row; a missing row is a gap in the evidence.
  void AddLog(const std::string& text, const std::string& shown, Evidence& evidence);
  // Adds the logs of a folder. If only the bench writes there (`only_bench`), a log without a table
  // lacks its rows; elsewhere such a log is only searched for lines of a broken cache.
  void AddLogsIn(const LogFolder& folder, bool only_bench, Evidence& evidence);
  // Adds the rows of llm_bench's JSON output.
  void AddResults(const LogFolder& folder);
  // Checks manifest.json: every run must have returned 0 and left its log, here or in logs/.
  void AddManifest(const LogFolder& folder, Evidence& evidence);
  // Takes the rows of h2o_metrics.csv if the logs have none, and compares their number otherwise.
  void AddCsv(const LogFolder& folder, Evidence& evidence);
};

// Whether a file name is that of an llm_bench log. Other programs leave their transcripts beside.
bool IsBenchLog(std::string_view name);
enum class BenchKind {
  kCase,      // a case of the suite
  kLoose,     // a bench without a suite, which may have JSON results too
  kBaseline,  // a baseline of the same batch: a log without a table is another program's
};
// Reads the bench in a folder: bench_stdout.log, logs/, h2o_metrics.csv and manifest.json.
void ReadBench(const LogFolder& folder, BenchKind kind, BenchLogs& bench, Evidence& evidence);
// Reads the rows of the same-batch baseline from its own folder.
BenchTable ReadBaselineTable(const LogFolder& folder, Evidence& evidence);
// Reads an offline estimate. Returns nothing without one; a file that cannot be read is a gap.
std::optional<OfflineRatio> ReadOffline(const LogFolder& folder, const std::string& name,
                                        Evidence& evidence);

}  // namespace kv::mnn::logs
