// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/evidence.h"

namespace kv::mnn::logs {

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
  std::string folder;       // as reports print it: "OUT/runtime_store"
  std::string console_log;  // as reports print it: "OUT/runtime_store.console.log"
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
  std::optional<int64_t> return_code = {};  // the first that is not 0, or 0 if all are
  bool code_unreadable = false;             // true: a code exists, but is not a number
  std::string code_place = {};              // the document that has the code
  Json row = {};                            // from the first document that has it
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
