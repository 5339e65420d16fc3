// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/engines/mnn/logs/evidence.h"
#include "lib/engines/mnn/logs/truth.h"

namespace kv::mnn::logs {

// The logs of one bench as they lie in its folder, and what is missing of them.
struct BenchLogs {
  BenchTable table;
  InvalidLines invalid;  // as the analyzer counts them, in the logs that it reads
  LosslessLines lossless;
  bool has_stdout = false;  // a transcript that should hold [H2O-LOSSLESS] lines
  size_t logs = 0;          // of the bench
  bool was_begun = false;   // some log shows that a run was, whether it has rows or not
  // Of its manifest: how many runs, and those that did not end well, in words.
  uint64_t runs = 0, failed_runs = 0;
  std::vector<std::string> failures = {};

  void AddStdout(const std::string& text, const std::string& shown, Evidence& evidence);
  // A log of the bench must have a row.
  void AddLog(const std::string& text, const std::string& shown, Evidence& evidence);
  // Logs without a table are the bench's too, and lack their rows, where nothing else should lie
  // in the folder; elsewhere they are only searched for broken lines.
  void AddLogsIn(const LogFolder& folder, bool only_bench, Evidence& evidence);
  // Documents of llm_bench's JSON output.
  void AddResults(const LogFolder& folder);
  // manifest.json of the folder: every run returned 0 and left its log, here or in logs/.
  void AddManifest(const LogFolder& folder, Evidence& evidence);
  // Rows that h2o_metrics.csv has instead, or has besides.
  void AddCsv(const LogFolder& folder, Evidence& evidence);
};

// Logs of llm_bench; transcripts of other programs lie beside them.
bool IsBenchLog(std::string_view name);
enum class BenchKind {
  kCase,      // of the suite
  kLoose,     // with JSON results too
  kBaseline,  // of the same batch: what is no table is another program's
};
// The bench of a folder: bench_stdout.log, logs/, h2o_metrics.csv and manifest.json.
void ReadBench(const LogFolder& folder, BenchKind kind, BenchLogs& bench, Evidence& evidence);
// The same-batch baseline's rows, of its own folder.
BenchTable ReadBaselineTable(const LogFolder& folder, Evidence& evidence);
// Nothing where there is none; what is there and cannot be read is a gap.
std::optional<OfflineRatio> ReadOffline(const LogFolder& folder, const std::string& name,
                                        Evidence& evidence);

}  // namespace kv::mnn::logs
