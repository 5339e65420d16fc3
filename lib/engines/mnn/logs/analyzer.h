// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/text.h"

namespace kv::mnn::logs {

// The quality gate of the engine's own suite: thresholds under the names of its analyzer's options,
// and figures by its definitions. truth.h corrects what those definitions get wrong.

struct AnalyzerOptions {
  double lossy_target = 3.0;
  double lossless_target = 1.3;
  double decode_baseline = 0;                   // tokens/s; 0 means that no rule judges speed
  std::string decode_gate_aggregation = "avg";  // avg, median, p90, best
  std::string decode_baseline_source = {};
  int64_t decode_baseline_samples = 0;
  double decode_drop_target = 0.05;
  std::string runtime_mode = {};  // probe, full, store or empty
  int64_t async_threads = 0;
  bool require_kv_content_consistency = false;
  int64_t max_kv_invalid_log_lines = 0;
  // A negative value means no limit.
  double max_lossless_queue_peak = -1;
  double max_lossless_fallback = -1;
  double max_lossless_backpressure_skip = -1;
  double max_lossless_decomp_us = -1;
  double max_lossless_async_wait_us = -1;
  double async_wait_headroom_warn_ratio = 0.15;
  bool require_runtime_decomp = false;
  bool require_decode_cache_hit = false;
  bool require_async_queue_activity = false;
  bool require_decode_cache_activity = false;
  bool strict_runtime_metric_columns = false;
};

// Sets one option from its text. The name may be spelled "lossy-target", "--lossy-target" or
// "lossy_target"; an empty text turns a switch on. Throws kUsage for an unknown name or a value
// that does not fit.
void SetAnalyzerOption(std::string_view name, std::string_view value, AnalyzerOptions& options);
// Lists the names with underscores, in the order of the analyzer's help.
std::vector<std::string_view> AnalyzerOptionNames();
// Returns the options that the suite passes for one of its runtime cases, and the analyzer's
// defaults for any other name.
AnalyzerOptions SuiteOptions(std::string_view case_name);

// The result of an offline estimate, as the engine's offline_lossless_fp16.py writes it.
struct OfflineRatio {
  std::string path;  // path in the form that reports print
  double ratio = 0;
  int64_t selected_entries = 0;
  std::string selected_layers = "[]";  // a list in Python's spelling
};
// Throws kBadText if the text is not such a document, and kBadField if its ratio is not positive.
OfflineRatio ParseOfflineRatio(std::string_view json, std::string_view path);

// Lines that an engine prints when its cache is broken.
struct InvalidLines {
  uint64_t count = 0;
  std::vector<std::string> examples;  // the first five suspicious lines, as "log: line"
};
void ScanInvalidLines(std::string_view text, std::string_view log, InvalidLines& found);
void ForEachInvalidLine(std::string_view text, const std::function<void(std::string_view)>& use);
void AddInvalidLine(std::string_view line, std::string_view log, InvalidLines& found);

// The numbers of one row of the table, read as the analyzer reads them.
struct AnalyzerRow {
  double lossy = 0, lossless = 0, floor_keep = 0, quantized_keep = 0, raw_mb = 0, comp_mb = 0,
         decomp_us = 0, queue_peak = 0, fallback = 0, backpressure_skip = 0, async_queue_peak = 0,
         async_wait_us = 0, cache_hit = 0, cache_miss = 0, cache_activity = 0,
         decompressed_bytes = 0, decode_tps = 0;
  std::string log_file;
};

// A figure of a row: its column, and its names in the analyzer's report, of the maximum over the
// rows (which it calls best even if a larger value is worse) and of the mean.
struct RowFigure {
  std::string_view column;
  double AnalyzerRow::*of;
  std::string_view best = {}, average = {};

  std::string_view key() const { return best.empty() ? column : best; }
};
inline constexpr RowFigure kRowFigures[] = {
    {"h2o_lossy", &AnalyzerRow::lossy, "lossy_best", "Avg lossy ratio"},
    {"h2o_lossless", &AnalyzerRow::lossless, {}, "Avg runtime lossless ratio"},
    {"h2o_floor_keep", &AnalyzerRow::floor_keep},
    {"h2o_quantized_keep", &AnalyzerRow::quantized_keep},
    {"h2o_lossless_raw_mb", &AnalyzerRow::raw_mb, {}, "Avg lossless raw MB"},
    {"h2o_lossless_comp_mb", &AnalyzerRow::comp_mb, {}, "Avg lossless comp MB"},
    {"h2o_lossless_decomp_us", &AnalyzerRow::decomp_us, "runtime_decomp_best_us",
     "Avg lossless decomp us"},
    {"h2o_lossless_queue_peak", &AnalyzerRow::queue_peak, "runtime_queue_peak_best",
     "Avg lossless queue peak"},
    {"h2o_lossless_fallback", &AnalyzerRow::fallback, "runtime_fallback_best",
     "Avg lossless fallback"},
    {"h2o_lossless_backpressure_skip", &AnalyzerRow::backpressure_skip,
     "runtime_backpressure_skip_best", "Avg lossless backpressure skip"},
    {"h2o_lossless_async_queue_peak", &AnalyzerRow::async_queue_peak,
     "runtime_async_queue_peak_best", "Avg lossless async queue peak"},
    {"h2o_lossless_async_wait_us", &AnalyzerRow::async_wait_us, "runtime_async_wait_best_us",
     "Avg lossless async wait us"},
    {"h2o_lossless_decode_cache_hit", &AnalyzerRow::cache_hit, "runtime_decode_cache_hit_best",
     "Avg lossless decode cache hit"},
    {"h2o_lossless_decode_cache_miss", &AnalyzerRow::cache_miss, "runtime_decode_cache_miss_best"},
    {"h2o_lossless_decompressed_bytes", &AnalyzerRow::decompressed_bytes,
     "runtime_decompressed_bytes_best"},
    // Sum of hits and misses.
    {"h2o_lossless_decode_cache_hit", &AnalyzerRow::cache_activity,
     "runtime_decode_cache_activity_best"}};

// An upper limit, with the analyzer's keys of the figure and of its verdict.
struct RuntimeLimit {
  double AnalyzerOptions::*limit;
  double AnalyzerRow::*of;
  std::string_view best, pass;
};
inline constexpr RuntimeLimit kRuntimeLimits[] = {
    {&AnalyzerOptions::max_lossless_decomp_us, &AnalyzerRow::decomp_us, "runtime_decomp_best_us",
     "runtime_decomp_budget_pass"},
    {&AnalyzerOptions::max_lossless_async_wait_us, &AnalyzerRow::async_wait_us,
     "runtime_async_wait_best_us", "runtime_async_wait_pass"},
    {&AnalyzerOptions::max_lossless_queue_peak, &AnalyzerRow::queue_peak, "runtime_queue_peak_best",
     "runtime_queue_peak_pass"},
    {&AnalyzerOptions::max_lossless_fallback, &AnalyzerRow::fallback, "runtime_fallback_best",
     "runtime_fallback_pass"},
    {&AnalyzerOptions::max_lossless_backpressure_skip, &AnalyzerRow::backpressure_skip,
     "runtime_backpressure_skip_best", "runtime_backpressure_skip_pass"}};

// Activity that must have happened, if it is required.
struct RuntimeActivity {
  bool AnalyzerOptions::*required;
  double AnalyzerRow::*of;
  std::string_view metric, best, pass;
};
inline constexpr RuntimeActivity kRuntimeActivities[] = {
    {&AnalyzerOptions::require_runtime_decomp, &AnalyzerRow::decomp_us, "runtime_decomp_required",
     "runtime_decomp_best_us", "runtime_decomp_required_pass"},
    {&AnalyzerOptions::require_decode_cache_hit, &AnalyzerRow::cache_hit,
     "runtime_decode_cache_required", "runtime_decode_cache_hit_best",
     "runtime_decode_cache_required_pass"},
    {&AnalyzerOptions::require_async_queue_activity, &AnalyzerRow::async_queue_peak,
     "runtime_async_queue_activity_required", "runtime_async_queue_peak_best",
     "runtime_async_queue_activity_pass"},
    {&AnalyzerOptions::require_decode_cache_activity, &AnalyzerRow::cache_activity,
     "runtime_decode_cache_activity_required", "runtime_decode_cache_activity_best",
     "runtime_decode_cache_activity_pass"}};

// Reads the rows exactly: "1e-05" is not 1, and a cell that is not a number becomes NaN.
std::vector<AnalyzerRow> ExactRows(const BenchTable& table);
// Returns the deviation of a row's decode speed over its repetitions: the number after the
// plus-minus sign, or 0 without one.
double DecodeDeviation(const BenchTable& table, size_t row);

// The input of the analyzer's verdict.
struct GateFigures {
  std::vector<AnalyzerRow> rows;  // never empty
  AnalyzerOptions options;
  std::optional<OfflineRatio> upper, online;
  InvalidLines invalid;
  std::vector<std::string> missing_columns;
  bool has_decompressed_bytes = false;
};
// Throws kMissingRecord if the table has no rows.
GateFigures Analyze(const BenchTable& table, const AnalyzerOptions& options,
                    const std::optional<OfflineRatio>& upper,
                    const std::optional<OfflineRatio>& online, const InvalidLines& invalid);

// The bullets below "## Quality Gate" in the analyzer's report: keys to values without back-quotes.
using GateBullets = std::map<std::string, std::string, std::less<>>;
// Returns the bullets that the analyzer would write for these figures, with its decimals.
GateBullets ListGateBullets(const GateFigures& figures);
GateBullets ParseGateBullets(std::string_view markdown);
// Returns the keys to which a report gives two values, such as "overall_pass (true, false)".
std::vector<std::string> Contradictions(std::string_view markdown);
// Returns the keys that these bullets lack, although the analyzer always writes them.
std::vector<std::string> MissingBullets(const GateBullets& bullets);
// Returns the thresholds that a report says it applied; those that it does not name come from
// `otherwise`.
AnalyzerOptions ReadReportOptions(const GateBullets& bullets, AnalyzerOptions otherwise);
// Returns the options of a report that let more pass than the suite's own.
std::vector<std::string> LooserOptions(const AnalyzerOptions& report, const AnalyzerOptions& suite);

std::string TextAt(const GateBullets& bullets, std::string_view key, std::string otherwise = {});
// Returns the number under a key, if it is finite.
std::optional<double> NumberIn(const GateBullets& bullets, std::string_view key);

}  // namespace kv::mnn::logs
