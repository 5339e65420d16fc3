// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/study/gate/log_files.h"

namespace kv::mnn::logs {

using gate::LogFolder;
using gate::LogText;
using gate::ReadLog;

// Evidence that fails a case whatever its figures are: a negative verdict of the engine, figures
// that are not numbers, missing evidence, and lines of a broken cache.

// Troubles of one kind: their number, and the first few in words.
struct Trouble {
  uint64_t count = 0;
  std::vector<std::string> examples = {};

  void Add(std::string what);
  std::string Text() const;  // "a; b; and 3 more"
};

// A negative verdict of the engine.
struct Denial {
  std::string metric;  // the first key with a negative value
  std::string reason;  // "runtime_full/summary.md says false: decode_pass"
};

// The log lines that report a broken cache, from all logs of a case. A line that the bench printed
// counts once, even if console logs repeat it.
class Damage {
 public:
  // Adds a log that the engine's analyzer reads too.
  void AddBench(std::string_view text, std::string_view shown);
  void AddOther(std::string_view text, std::string_view shown);
  // Adds all logs in the folder and in its subfolders down to this depth.
  void AddFolder(const LogFolder& folder, int depth);
  const InvalidLines& lines() const { return lines_; }
  uint64_t logs() const { return read_.size(); }

 private:
  void Add(std::string_view text, std::string_view shown, bool again);

  InvalidLines lines_;
  std::set<std::string, std::less<>> seen_, read_;
};

struct Evidence {
  std::vector<Denial> denials;
  Trouble gaps, non_finite;
  Damage damage;
};

// Returns true if a file name is that of a log of any program.
bool IsLog(std::string_view name);
// Returns the last line that tells how a program died, or "".
std::string LastWords(std::string_view log);

// Checks the cells of all columns with figures. An empty cell is a gap, and so is a cut row.
void CheckCells(const BenchTable& table, Evidence& evidence);
void CheckFigures(const GateBullets& bullets, const std::string& shown, Evidence& evidence);
// Adds NaNs and infinities anywhere in `value` to the evidence. `name` is the key of `value`.
void CheckFigures(const Json& value, const std::string& shown, Evidence& evidence,
                  const std::string& name = {});

// Returns the rules that the analyzer's report says are broken, without those that did not apply.
std::vector<std::string> DeniedBy(const GateBullets& bullets);
std::vector<std::string> DeniedBy(const Json& demo_report);
// Adds a denial, unless the list is empty. `why` is the document's own reason, if it gives one.
void AddDenial(const std::vector<std::string>& keys, const std::string& who, Evidence& evidence,
               std::string_view why = {});

// Reads what the engine's suite writes about its cases: the rows of summary.json and cases.jsonl,
// and the lines of summary.md.

// The suite's cases in its order, with the mode that each runs in. Those of the runtime suite come
// first; the others are whole runs of llm_demo.
struct SuiteCaseName {
  std::string_view name, mode;
};
inline constexpr SuiteCaseName kSuiteCases[] = {
    {"runtime_baseline", "full"}, {"runtime_probe", "probe"}, {"runtime_full", "full"},
    {"runtime_store", "store"},   {"llm_demo_full", "full"},  {"llm_demo_store", "store"}};
inline constexpr std::string_view kBaselineCase = kSuiteCases[0].name;  // compresses nothing

// Returns why a case failed, as the suite does: the last lines of its console log.
std::string ConsoleFailure(std::string_view console_log);

// One case in the suite.
struct SuiteCase {
  std::string name, mode;
  int64_t return_code = 0;
  std::string folder;       // in the form that reports print: "OUT/runtime_store"
  std::string console_log;  // in the form that reports print: "OUT/runtime_store.console.log"
  std::optional<std::string> console_text = {};
  std::optional<std::string> summary_text = {};  // summary.md of a runtime case, if it exists
  GateBullets bullets = {};  // from summary.md, or those that the analyzer would write
  std::optional<std::string> report_text = {};  // llm_demo_report.json
};

// The figures of a row in their order. The suite writes each of them into every row, as 0 if a
// report lacks it. A row without a required one was cut or edited and cannot be judged.
struct RowKey {
  const char* name;
  bool required = true;
};
inline constexpr RowKey kRuntimeRowKeys[] = {{"quality_status"},
                                             {"lossy_best"},
                                             {"lossless_selected_value"},
                                             {"decode_aggregation", false},
                                             {"decode_gate_tps"},
                                             {"decode_best"},
                                             {"decode_baseline"},
                                             {"decode_drop_ratio"},
                                             {"decode_drop_target"},
                                             {"runtime_decomp_best_us"},
                                             {"runtime_async_wait_best_us"},
                                             {"runtime_async_wait_headroom_us", false},
                                             {"runtime_async_wait_headroom_ratio", false},
                                             {"runtime_async_wait_headroom_warn", false},
                                             {"runtime_queue_peak_best"},
                                             {"runtime_fallback_best"},
                                             {"runtime_backpressure_skip_best"},
                                             {"runtime_decode_cache_hit_best"},
                                             {"runtime_decode_cache_miss_best", false},
                                             {"kv_content_consistency_pass"},
                                             {"kv_invalid_log_count"}};
inline constexpr RowKey kDemoRowKeys[] = {{"baseline_decode_tps_avg"},
                                          {"candidate_decode_tps_avg"},
                                          {"decode_drop_ratio"},
                                          {"decode_drop_target"},
                                          {"candidate_lossy_ratio_avg"},
                                          {"candidate_lossless_ratio_avg"},
                                          {"candidate_runtime_total_ratio_avg", false},
                                          {"runtime_decomp_best_us"},
                                          {"decode_cache_hit_best"},
                                          {"decode_pass"},
                                          {"run_order", false}};
Json RuntimeRow(const SuiteCase& suite_case);
Json DemoRow(const SuiteCase& suite_case);

// Returns a row as the suite's summary.md shows it, without its number.
std::string SuiteLine(const Json& row);

// The suite's own records of one of its cases in summary.json, cases.jsonl and summary.md.
struct CaseOutput {
  std::optional<int64_t> return_code = {};  // the first code that is not 0, or 0 if all are
  bool code_unreadable = false;             // true: a code exists, but is not a number
  std::string code_place = {};              // the document that states the code
  Json row = {};                            // row of the first document that has one
  std::string row_place = {};               // name of that document
  Evidence evidence = {};
};

struct SuiteOutput {
  std::map<std::string, CaseOutput, std::less<>> cases = {};
  // Evidence about the whole suite, which concerns every case.
  Evidence evidence = {};
  std::vector<std::string> notes = {};
};
SuiteOutput ReadSuiteOutput(const LogFolder& folder);
// Returns true for a summary.json, of the suite or of kvtool.
bool IsSuiteSummary(std::string_view text);
// Reads the suite's summary.json alone. Throws kMissingRecord for kvtool's own.
SuiteOutput ReadSuiteSummary(const std::string& text, const std::string& shown);

}  // namespace kv::mnn::logs
