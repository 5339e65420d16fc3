// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/analyzer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/engines/mnn/logs/text.h"

namespace kv::mnn::logs {
namespace {

constexpr size_t kMaxExamples = 5;
constexpr size_t kExampleLength = 220;                 // in characters
constexpr size_t kMaxBytesRead = 16 * kExampleLength;  // of a line, before it is cut

constexpr std::array<std::string_view, 8> kRuntimeColumns = {
    "h2o_lossless_decomp_us",         "h2o_lossless_queue_peak",       "h2o_lossless_fallback",
    "h2o_lossless_backpressure_skip", "h2o_lossless_async_queue_peak", "h2o_lossless_async_wait_us",
    "h2o_lossless_decode_cache_hit",  "h2o_lossless_decode_cache_miss"};

constexpr std::array<std::string_view, 8> kInvalidPatterns = {"Invalid KV realloc",
                                                              "Invalid KV reserve range",
                                                              "KV length/meta previous mismatch",
                                                              "Drop stale per-layer pending plan",
                                                              "corrupted size",
                                                              "double free",
                                                              "Segmentation fault",
                                                              "munmap_chunk"};

// What follows the first "<br>" that a number follows.
std::string_view DecodeText(std::string_view cell) {
  constexpr std::string_view kBreak = "<br>";
  for (size_t at = cell.find(kBreak); at != std::string_view::npos; at = cell.find(kBreak, at)) {
    at += kBreak.size();
    const std::string_view rest = cell.substr(at);
    const size_t begin = rest.find_first_not_of(" \t\n\r\v\f");
    if (begin == std::string_view::npos) break;
    if (rest[begin] >= '0' && rest[begin] <= '9') return rest.substr(begin);
  }
  return {};
}

enum class RowReading { kAsTheTool, kExact };

AnalyzerRow ReadRow(const BenchTable& table, size_t i, RowReading reading) {
  const auto read = [&](std::string_view text) {
    if (reading == RowReading::kAsTheTool) return LooseNumber(text, 0, true);
    return HasNonFinite(text) ? NAN : FirstNumber(text).value_or(NAN);
  };
  // The tool reads "h2o_lossy" as 2.
  const bool no_figures = reading == RowReading::kExact && table.IsHeaderAgain(i);
  const auto number = [&](std::string_view column) {
    return no_figures ? NAN : read(table.Cell(i, column));
  };
  AnalyzerRow row;
  row.keep = number("h2o_keep");
  row.lossy = number("h2o_lossy");
  row.lossless = number("h2o_lossless");
  row.target_keep_effective = number("h2o_target_keep_effective");
  row.floor_keep = number("h2o_floor_keep");
  row.quantized_keep = number("h2o_quantized_keep");
  row.evict_us = number("h2o_evict_us");
  row.codec_us = number("h2o_codec_us");
  row.raw_mb = number("h2o_lossless_raw_mb");
  row.comp_mb = number("h2o_lossless_comp_mb");
  row.comp_us = number("h2o_lossless_comp_us");
  row.decomp_us = number("h2o_lossless_decomp_us");
  row.queue_peak = number("h2o_lossless_queue_peak");
  row.fallback = number("h2o_lossless_fallback");
  row.backpressure_skip = number("h2o_lossless_backpressure_skip");
  row.async_queue_peak = number("h2o_lossless_async_queue_peak");
  row.async_wait_us = number("h2o_lossless_async_wait_us");
  row.cache_hit = number("h2o_lossless_decode_cache_hit");
  row.cache_miss = number("h2o_lossless_decode_cache_miss");
  row.decompressed_bytes = number("h2o_lossless_decompressed_bytes");
  row.decode_tps = read(DecodeText(table.Cell(i, "speed(tok/s)")));
  row.log_file = table.Cell(i, "log_file");
  return row;
}

double Most(const std::vector<AnalyzerRow>& rows, double AnalyzerRow::*figure) {
  double most = rows.front().*figure;
  for (const AnalyzerRow& row : rows) most = row.*figure > most ? row.*figure : most;
  return most;
}

void SelectLossless(GateFigures& f) {
  const double online = f.online ? f.online->ratio : 0, upper = f.upper ? f.upper->ratio : 0;
  if (online > 0) {
    f.selected_lossless = online;
    f.selected_source = "offline_online_sim";
  } else if (upper > 0) {
    f.selected_lossless = upper;
    f.selected_source = "offline_upper_bound";
  } else {
    double sum = 0;
    for (const AnalyzerRow& row : f.rows) sum += row.lossless;
    f.selected_lossless = sum / static_cast<double>(f.rows.size());
    f.selected_source = "runtime";
  }
  f.online_lossless = online > 0 ? online : f.selected_lossless;
}

void AggregateDecode(GateFigures& f) {
  std::vector<double> speeds;
  for (const AnalyzerRow& row : f.rows) speeds.push_back(row.decode_tps);
  std::sort(speeds.begin(), speeds.end());
  const size_t n = speeds.size();
  for (const double speed : speeds) f.decode_avg += speed;
  f.decode_avg /= static_cast<double>(n);
  f.decode_median = n % 2 == 1 ? speeds[n / 2] : (speeds[n / 2 - 1] + speeds[n / 2]) / 2;
  const auto p90 = static_cast<size_t>(std::ceil(0.9 * static_cast<double>(n)));
  f.decode_p90 = speeds[std::clamp<size_t>(p90, 1, n) - 1];
  f.decode_best = speeds.back();
  const std::string& how = f.options.decode_gate_aggregation;
  f.decode_gate = how == "best"     ? f.decode_best
                  : how == "median" ? f.decode_median
                  : how == "p90"    ? f.decode_p90
                                    : f.decode_avg;
  const double baseline = f.options.decode_baseline;
  if (baseline > 0) {
    f.decode_drop_ratio = (baseline - f.decode_gate) / baseline;
    f.decode_pass = f.decode_drop_ratio <= f.options.decode_drop_target;
  }
}

void CheckLimits(GateFigures& f) {
  const AnalyzerOptions& o = f.options;
  const auto within = [](double value, double limit) { return !(limit >= 0) || value <= limit; };
  f.decomp_budget_pass = within(f.decomp_best, o.max_lossless_decomp_us);
  f.async_wait_pass = within(f.async_wait_best, o.max_lossless_async_wait_us);
  f.queue_peak_pass = within(f.queue_peak_best, o.max_lossless_queue_peak);
  f.fallback_pass = within(f.fallback_best, o.max_lossless_fallback);
  f.backpressure_pass = within(f.backpressure_skip_best, o.max_lossless_backpressure_skip);
  f.decomp_required_pass = !o.require_runtime_decomp || f.decomp_best > 0;
  f.cache_required_pass = !o.require_decode_cache_hit || f.cache_hit_best > 0;
  f.queue_activity_pass = !o.require_async_queue_activity || f.async_queue_peak_best > 0;
  f.cache_activity_pass = !o.require_decode_cache_activity || f.cache_activity_best > 0;
  f.columns_pass = !o.strict_runtime_metric_columns || f.missing_columns.empty();
  if (o.max_lossless_async_wait_us > 0) {
    f.headroom_us = o.max_lossless_async_wait_us - f.async_wait_best;
    f.headroom_ratio = f.headroom_us / o.max_lossless_async_wait_us;
    f.headroom_warn = o.async_wait_headroom_warn_ratio >= 0 && f.async_wait_pass &&
                      f.headroom_ratio < o.async_wait_headroom_warn_ratio;
  }
}

void CheckConsistency(GateFigures& f) {
  const AnalyzerOptions& o = f.options;
  const int64_t allowed = std::max<int64_t>(0, o.max_kv_invalid_log_lines);
  f.invalid_log_pass = f.invalid.count <= static_cast<uint64_t>(allowed);
  f.async_activity_required = o.async_threads > 0 && o.runtime_mode != "probe";
  f.async_activity_pass =
      !f.async_activity_required || f.async_queue_peak_best > 0 || f.async_wait_best > 0;
  f.restore_required = o.runtime_mode == "full" || o.runtime_mode == "store";
  f.restore_activity_pass =
      !f.restore_required ||
      (f.decomp_best > 0 && (!f.has_decompressed_bytes || f.decompressed_bytes_best > 0));
  f.fallback_clean_pass = f.fallback_best <= 0;
  f.consistency_pass =
      !o.require_kv_content_consistency || (f.invalid_log_pass && f.async_activity_pass &&
                                            f.restore_activity_pass && f.fallback_clean_pass);
}

}  // namespace

OfflineRatio ParseOfflineRatio(std::string_view json, std::string_view path) {
  const Json document = ParseJson(json, path);
  if (!document.is_object()) {
    throw Error(Finding::kBadText, "expected a JSON object with a lossless ratio").File(path);
  }
  const auto number = [&](const char* key) {
    const auto found = document.find(key);
    if (found == document.end()) return 0.0;
    if (found->is_string()) return LooseNumber(found->get_ref<const std::string&>(), 0, true);
    return NumberAt(document, key);
  };
  OfflineRatio offline;
  offline.path = path;
  offline.ratio = number(document.contains("weighted_lossless_ratio") ? "weighted_lossless_ratio"
                                                                      : "lossless_ratio");
  if (!(offline.ratio > 0) || !std::isfinite(offline.ratio)) {
    throw Error(Finding::kBadField,
                fmt::format("expected a positive weighted_lossless_ratio or lossless_ratio, found "
                            "{}",
                            offline.ratio))
        .File(path);
  }
  const double entries = number("selected_entries");
  offline.selected_entries = std::isfinite(entries) && std::abs(entries) < kLargestWhole
                                 ? static_cast<int64_t>(entries)
                                 : 0;
  if (document.contains("selected_layers")) {
    offline.selected_layers = PythonValue(document["selected_layers"]);
  }
  return offline;
}

void ForEachInvalidLine(std::string_view text, const std::function<void(std::string_view)>& use) {
  const std::string clean = OnlyUtf8(text);
  text = clean;
  // A text file's lines: they end with \n, \r or both.
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\r"), text.size());
    const std::string_view raw = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool hit =
        std::any_of(kInvalidPatterns.begin(), kInvalidPatterns.end(),
                    [&](std::string_view pattern) { return ContainsIgnoringCase(raw, pattern); });
    if (hit) use(raw);
  }
}

void AddInvalidLine(std::string_view line, std::string_view log, InvalidLines& found) {
  ++found.count;
  if (found.examples.size() == kMaxExamples) return;
  const std::string clean = OnlyUtf8(line.substr(0, kMaxBytesRead));
  found.examples.push_back(
      fmt::format("{}: {}", log, FirstCodePoints(Strip(clean), kExampleLength)));
}

void ScanInvalidLines(std::string_view text, std::string_view log, InvalidLines& found) {
  ForEachInvalidLine(text, [&](std::string_view line) { AddInvalidLine(line, log, found); });
}

std::vector<AnalyzerRow> ExactRows(const BenchTable& table) {
  std::vector<AnalyzerRow> rows;
  for (size_t i = 0; i < table.size(); ++i) rows.push_back(ReadRow(table, i, RowReading::kExact));
  return rows;
}

double DecodeDeviation(const BenchTable& table, size_t row) {
  constexpr std::string_view kPlusMinus = "\u00b1";
  const std::string_view text = DecodeText(table.Cell(row, "speed(tok/s)"));
  const size_t at = text.find(kPlusMinus);
  if (at == std::string_view::npos) return 0;
  return FirstNumber(text.substr(at + kPlusMinus.size())).value_or(0);
}

GateFigures Analyze(const BenchTable& table, const AnalyzerOptions& options,
                    const std::optional<OfflineRatio>& upper,
                    const std::optional<OfflineRatio>& online, const InvalidLines& invalid) {
  if (table.size() == 0) throw Error(Finding::kMissingRecord, "the table has no rows");
  GateFigures f;
  f.options = options;
  f.upper = upper;
  f.online = online;
  f.invalid = invalid;
  for (size_t i = 0; i < table.size(); ++i)
    f.rows.push_back(ReadRow(table, i, RowReading::kAsTheTool));
  for (const std::string_view column : kRuntimeColumns) {
    if (!table.HasColumn(column)) f.missing_columns.emplace_back(column);
  }
  f.has_decompressed_bytes = table.HasColumn("h2o_lossless_decompressed_bytes");

  SelectLossless(f);
  f.lossy_best = Most(f.rows, &AnalyzerRow::lossy);
  f.decomp_best = Most(f.rows, &AnalyzerRow::decomp_us);
  f.queue_peak_best = Most(f.rows, &AnalyzerRow::queue_peak);
  f.fallback_best = Most(f.rows, &AnalyzerRow::fallback);
  f.backpressure_skip_best = Most(f.rows, &AnalyzerRow::backpressure_skip);
  f.async_queue_peak_best = Most(f.rows, &AnalyzerRow::async_queue_peak);
  f.async_wait_best = Most(f.rows, &AnalyzerRow::async_wait_us);
  f.cache_hit_best = Most(f.rows, &AnalyzerRow::cache_hit);
  f.cache_miss_best = Most(f.rows, &AnalyzerRow::cache_miss);
  f.decompressed_bytes_best = Most(f.rows, &AnalyzerRow::decompressed_bytes);
  f.cache_activity_best = f.rows.front().cache_hit + f.rows.front().cache_miss;
  for (const AnalyzerRow& row : f.rows) {
    const double activity = row.cache_hit + row.cache_miss;
    if (activity > f.cache_activity_best) f.cache_activity_best = activity;
  }
  f.lossy_pass = f.lossy_best >= options.lossy_target;
  f.selected_lossless_pass = f.selected_lossless >= options.lossless_target;
  f.online_lossless_pass = f.online_lossless >= options.lossless_target;
  AggregateDecode(f);
  CheckLimits(f);
  CheckConsistency(f);
  f.overall_pass = f.lossy_pass && f.online_lossless_pass && f.decode_pass && f.columns_pass &&
                   f.decomp_pass() && f.async_wait_pass && f.queue_activity_pass &&
                   f.cache_required_pass && f.cache_activity_pass && f.queue_peak_pass &&
                   f.fallback_pass && f.backpressure_pass && f.consistency_pass;
  return f;
}

}  // namespace kv::mnn::logs
