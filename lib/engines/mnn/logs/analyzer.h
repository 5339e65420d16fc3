// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/table.h"

namespace kv::mnn::logs {

// The quality gate of the engine's own suite: the thresholds under the names of its analyzer's
// options, and its figures with its definitions. truth.h corrects what those definitions get wrong.
// Implemented by analyzer.cc and options.cc.

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
  // A negative value means that there is no limit.
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
  std::string path;  // as reports print it
  double ratio = 0;
  int64_t selected_entries = 0;
  std::string selected_layers = "[]";  // a list in Python's spelling
};
// Throws kBadText if the text is no such document, and kBadField if its ratio is not positive.
OfflineRatio ParseOfflineRatio(std::string_view json, std::string_view path);

// The lines that an engine prints when its cache is broken.
struct InvalidLines {
  uint64_t count = 0;
  std::vector<std::string> examples;  // the first five, as "log: line"
};
void ScanInvalidLines(std::string_view text, std::string_view log, InvalidLines& found);
void ForEachInvalidLine(std::string_view text, const std::function<void(std::string_view)>& use);
void AddInvalidLine(std::string_view line, std::string_view log, InvalidLines& found);

// The numbers of one row of the table, read as the analyzer reads them.
struct AnalyzerRow {
  double keep, lossy, lossless, target_keep_effective, floor_keep, quantized_keep, evict_us,
      codec_us, raw_mb, comp_mb, comp_us, decomp_us, queue_peak, fallback, backpressure_skip,
      async_queue_peak, async_wait_us, cache_hit, cache_miss, decompressed_bytes, decode_tps;
  std::string log_file;
};

// The analyzer's figures under its names. Each *_best is the maximum over the rows, even where a
// larger value is worse.
struct GateFigures {
  std::vector<AnalyzerRow> rows;
  AnalyzerOptions options;
  std::optional<OfflineRatio> upper, online;
  InvalidLines invalid;

  std::string selected_source;  // offline_online_sim, offline_upper_bound, runtime
  double selected_lossless = 0, online_lossless = 0;
  double lossy_best = 0, decomp_best = 0, queue_peak_best = 0, fallback_best = 0,
         backpressure_skip_best = 0, async_queue_peak_best = 0, async_wait_best = 0,
         cache_hit_best = 0, cache_miss_best = 0, cache_activity_best = 0,
         decompressed_bytes_best = 0;
  double decode_avg = 0, decode_median = 0, decode_p90 = 0, decode_best = 0, decode_gate = 0,
         decode_drop_ratio = 0;
  double headroom_us = 0, headroom_ratio = 1;
  bool headroom_warn = false;
  std::vector<std::string> missing_columns;
  bool has_decompressed_bytes = false;

  bool lossy_pass = false, selected_lossless_pass = false, online_lossless_pass = false,
       decode_pass = true, columns_pass = true, decomp_required_pass = true,
       decomp_budget_pass = true, async_wait_pass = true, queue_activity_pass = true,
       cache_required_pass = true, cache_activity_pass = true, queue_peak_pass = true,
       fallback_pass = true, backpressure_pass = true;
  bool invalid_log_pass = true, async_activity_required = false, async_activity_pass = true,
       restore_required = false, restore_activity_pass = true, fallback_clean_pass = true,
       consistency_pass = true;
  bool overall_pass = false;

  bool decomp_pass() const { return decomp_required_pass && decomp_budget_pass; }
};

// Reads the rows exactly: "1e-05" is not 1, and a cell that is no number is NaN.
std::vector<AnalyzerRow> ExactRows(const BenchTable& table);
// Returns the deviation of a row's decode speed over its repetitions: the number after the
// plus-minus sign, or 0 without one.
double DecodeDeviation(const BenchTable& table, size_t row);

// Computes the analyzer's figures and its verdict. Throws kMissingRecord if the table has no rows.
GateFigures Analyze(const BenchTable& table, const AnalyzerOptions& options,
                    const std::optional<OfflineRatio>& upper,
                    const std::optional<OfflineRatio>& online, const InvalidLines& invalid);

}  // namespace kv::mnn::logs
