// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cmath>

#include "lib/engines/mnn/logs/suite.h"

namespace kv::mnn::logs {
namespace {

// The figures under the analyzer's keys, written with its decimals.
class Bullets {
 public:
  void Text(std::string_view key, std::string_view value) { map_[std::string(key)] = value; }
  void Number(std::string_view key, double value, int digits = 4) {
    Text(key, Fixed(value, digits));
  }
  void Flag(std::string_view key, bool value) { Text(key, Bool(value)); }
  void Whole(std::string_view key, int64_t value) { Text(key, std::to_string(value)); }
  GateBullets Take() { return std::move(map_); }

 private:
  GateBullets map_;
};

void WriteRuntimeFigures(const GateFigures& f, Bullets& out) {
  const AnalyzerOptions& o = f.options;
  const bool wait_limited = o.max_lossless_async_wait_us >= 0;
  out.Flag("runtime_decomp_required", o.require_runtime_decomp);
  out.Number("runtime_decomp_best_us", f.decomp_best);
  out.Flag("runtime_metric_columns_strict", o.strict_runtime_metric_columns);
  out.Flag("runtime_metric_columns_ok", f.missing_columns.empty());
  out.Flag("runtime_metric_columns_pass", f.columns_pass);
  out.Text("runtime_metric_missing_columns", PythonList(f.missing_columns));
  out.Flag("runtime_decomp_gate_enabled", o.max_lossless_decomp_us >= 0);
  if (o.max_lossless_decomp_us >= 0)
    out.Number("runtime_decomp_target_us", o.max_lossless_decomp_us);
  out.Number("runtime_async_queue_peak_best", f.async_queue_peak_best);
  out.Flag("runtime_async_queue_activity_required", o.require_async_queue_activity);
  out.Number("runtime_async_wait_best_us", f.async_wait_best);
  out.Flag("runtime_async_wait_gate_enabled", wait_limited);
  if (wait_limited) {
    out.Number("runtime_async_wait_target_us", o.max_lossless_async_wait_us);
    out.Number("runtime_async_wait_headroom_us", f.headroom_us);
    out.Number("runtime_async_wait_headroom_ratio", f.headroom_ratio, 6);
    out.Number("runtime_async_wait_headroom_warn_ratio", o.async_wait_headroom_warn_ratio, 6);
    out.Flag("runtime_async_wait_headroom_warn", f.headroom_warn);
  }
  out.Number("runtime_decode_cache_hit_best", f.cache_hit_best);
  out.Number("runtime_decode_cache_miss_best", f.cache_miss_best);
  out.Number("runtime_decode_cache_activity_best", f.cache_activity_best);
  out.Flag("runtime_decode_cache_required", o.require_decode_cache_hit);
  out.Flag("runtime_decode_cache_activity_required", o.require_decode_cache_activity);
  out.Flag("runtime_decomp_required_pass", f.decomp_required_pass);
  out.Flag("runtime_decomp_budget_pass", f.decomp_budget_pass);
  out.Flag("runtime_async_queue_activity_pass", f.queue_activity_pass);
  out.Flag("runtime_async_wait_pass", f.async_wait_pass);
  out.Flag("runtime_decode_cache_required_pass", f.cache_required_pass);
  out.Flag("runtime_decode_cache_activity_pass", f.cache_activity_pass);
}

void WriteLimits(const GateFigures& f, Bullets& out) {
  const AnalyzerOptions& o = f.options;
  out.Number("runtime_queue_peak_best", f.queue_peak_best);
  out.Number("runtime_fallback_best", f.fallback_best);
  out.Number("runtime_backpressure_skip_best", f.backpressure_skip_best);
  const auto limit = [&](const std::string& name, double target, bool pass) {
    out.Flag(name + "_gate_enabled", target >= 0);
    if (target >= 0) out.Number(name + "_target", target);
    out.Flag(name + "_pass", pass);
  };
  limit("runtime_queue_peak", o.max_lossless_queue_peak, f.queue_peak_pass);
  limit("runtime_fallback", o.max_lossless_fallback, f.fallback_pass);
  limit("runtime_backpressure_skip", o.max_lossless_backpressure_skip, f.backpressure_pass);
  out.Flag("runtime_decomp_pass", f.decomp_pass());
}

void WriteConsistency(const GateFigures& f, Bullets& out) {
  const AnalyzerOptions& o = f.options;
  out.Flag("require_kv_content_consistency", o.require_kv_content_consistency);
  out.Text("runtime_mode", o.runtime_mode);
  out.Whole("async_threads", o.async_threads);
  out.Flag("runtime_decompressed_bytes_available", f.has_decompressed_bytes);
  out.Number("runtime_decompressed_bytes_best", f.decompressed_bytes_best);
  out.Flag("kv_restore_required", f.restore_required);
  out.Flag("kv_restore_activity_pass", f.restore_activity_pass);
  out.Flag("kv_fallback_clean_pass", f.fallback_clean_pass);
  out.Flag("kv_async_activity_required", f.async_activity_required);
  out.Flag("kv_async_activity_pass", f.async_activity_pass);
  out.Whole("kv_invalid_log_count", static_cast<int64_t>(f.invalid.count));
  out.Whole("kv_invalid_log_max_allowed", std::max<int64_t>(0, o.max_kv_invalid_log_lines));
  out.Flag("kv_invalid_log_pass", f.invalid_log_pass);
  out.Text("kv_invalid_log_examples", PythonList(f.invalid.examples));
  out.Flag("kv_content_consistency_pass", f.consistency_pass);
}

void WriteDecode(const GateFigures& f, Bullets& out) {
  const AnalyzerOptions& o = f.options;
  out.Flag("decode_gate_enabled", o.decode_baseline > 0);
  out.Text("decode_aggregation", o.decode_gate_aggregation);
  out.Number("decode_gate_tps", f.decode_gate);
  out.Number("decode_avg_tps", f.decode_avg);
  out.Number("decode_median_tps", f.decode_median);
  out.Number("decode_p90_tps", f.decode_p90);
  if (!(o.decode_baseline > 0)) return;
  out.Number("decode_baseline", o.decode_baseline);
  if (!o.decode_baseline_source.empty()) {
    out.Text("decode_baseline_source", o.decode_baseline_source);
  }
  if (o.decode_baseline_samples > 0) {
    out.Whole("decode_baseline_samples", o.decode_baseline_samples);
  }
  out.Number("decode_best", f.decode_best);
  out.Number("decode_drop_ratio", f.decode_drop_ratio, 6);
  out.Number("decode_drop_target", o.decode_drop_target, 6);
  out.Flag("decode_pass", f.decode_pass);
}

void WriteOffline(const std::string& name, const std::optional<OfflineRatio>& offline,
                  Bullets& out) {
  if (!offline) return;
  out.Whole(name + "_selected_entries", offline->selected_entries);
  out.Text(name + "_selected_layers", offline->selected_layers);
  out.Text(name + "_json", offline->path);
}

}  // namespace

GateBullets GateBulletsOf(const GateFigures& f) {
  Bullets bullets;
  bullets.Text("quality_status", f.overall_pass ? "PASS" : "FAIL");
  bullets.Number("lossy_target", f.options.lossy_target);
  bullets.Number("lossy_best", f.lossy_best);
  bullets.Flag("lossy_pass", f.lossy_pass);
  bullets.Number("lossless_target", f.options.lossless_target);
  bullets.Text("lossless_selected_source", f.selected_source);
  bullets.Number("lossless_selected_value", f.selected_lossless);
  bullets.Flag("lossless_selected_pass", f.selected_lossless_pass);
  bullets.Number("lossless_online_value", f.online_lossless);
  bullets.Flag("lossless_online_pass", f.online_lossless_pass);
  WriteRuntimeFigures(f, bullets);
  WriteLimits(f, bullets);
  WriteConsistency(f, bullets);
  bullets.Flag("overall_pass", f.overall_pass);
  WriteDecode(f, bullets);
  WriteOffline("upper", f.upper, bullets);
  WriteOffline("online", f.online, bullets);
  return bullets.Take();
}

}  // namespace kv::mnn::logs
