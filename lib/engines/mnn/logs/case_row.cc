// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <span>

#include "lib/engines/mnn/logs/case.h"
#include "lib/engines/mnn/logs/demo.h"
#include "lib/engines/mnn/logs/reading.h"

namespace kv::mnn::logs {
namespace {

// The suite writes each of these into every row of its kind, as 0 where a report lacks it. A row
// without one was cut or edited, and no rule could judge it.
constexpr const char* kRuntimeKeys[] = {
    "quality_status",
    "lossy_best",
    "lossless_selected_value",
    "decode_gate_tps",
    "decode_best",
    "decode_baseline",
    "decode_drop_ratio",
    "decode_drop_target",
    "runtime_decomp_best_us",
    "runtime_async_wait_best_us",
    "runtime_queue_peak_best",
    "runtime_fallback_best",
    "runtime_backpressure_skip_best",
    "runtime_decode_cache_hit_best",
    "kv_content_consistency_pass",
    "kv_invalid_log_count",
};
constexpr const char* kDemoKeys[] = {
    "baseline_decode_tps_avg", "candidate_decode_tps_avg",  "decode_drop_ratio",
    "decode_drop_target",      "candidate_lossy_ratio_avg", "candidate_lossless_ratio_avg",
    "runtime_decomp_best_us",  "decode_cache_hit_best",     "decode_pass",
};

void RequireKeys(std::span<const char* const> keys, const Json& row, const std::string& place,
                 Evidence& evidence) {
  std::vector<std::string_view> missing;
  for (const char* key : keys) {
    if (!row.contains(key) || row[key].is_null()) missing.emplace_back(key);
  }
  if (missing.empty()) return;
  evidence.gaps.Add(fmt::format(
      "{}: the row of {} was cut: it lacks {}{}", place, TextAt(row, "case"), missing.front(),
      missing.size() == 1 ? "" : fmt::format(" and {} more figures", missing.size() - 1)));
}

// The suite keeps the largest of the rows alone.
Spread LargestOnly(const Json& row, const char* key) {
  Spread spread;
  if (row.contains(key)) spread.most = NumberAt(row, key);
  return spread;
}

RuntimeFacts FactsOfRow(const Json& row) {
  RuntimeFacts facts;
  facts.lossy = LargestOnly(row, "lossy_best");
  facts.selected_lossless = LargestOnly(row, "lossless_selected_value").most;
  facts.decode = LargestOnly(row, "decode_best");
  facts.decode.mean = LargestOnly(row, "decode_gate_tps").most;
  facts.decomp_us = LargestOnly(row, "runtime_decomp_best_us");
  facts.async_wait_us = LargestOnly(row, "runtime_async_wait_best_us");
  facts.queue_peak = LargestOnly(row, "runtime_queue_peak_best");
  facts.fallback = LargestOnly(row, "runtime_fallback_best");
  facts.backpressure_skip = LargestOnly(row, "runtime_backpressure_skip_best");
  facts.cache_hit = LargestOnly(row, "runtime_decode_cache_hit_best");
  facts.notes.emplace_back(
      "judged by summary.json alone: of each figure it has the largest of any row, and of the "
      "ratio of compressed bytes nothing but an offline estimate");
  return facts;
}

// Returns the row under the keys of the engine's report.
GateBullets BulletsOfRow(const Json& row) {
  GateBullets bullets;
  for (const auto& item : row.items()) {
    const Json& value = item.value();
    if (value.is_primitive() && !value.is_null()) {
      bullets[item.key()] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return bullets;
}

}  // namespace

CaseLogs ReadRow(const Json& row, const std::string& place, SuiteCase suite_case) {
  CaseLogs logs{std::move(suite_case), {}};
  logs.row = row;
  const SuiteCase& c = logs.suite_case;
  if (IsDemoName(c.name)) {
    RequireKeys(kDemoKeys, row, place, logs.evidence);
    logs.report = row;
    // The suite asks for these; its rows do not repeat it.
    const DemoOptions asked;
    logs.report["require_baseline_decode"] = asked.require_baseline_decode;
    logs.report["require_runtime_decomp"] = asked.require_runtime_decomp;
    logs.report["runtime_decomp_pass"] = NumberAt(row, "runtime_decomp_best_us") > 0;
    return logs;
  }
  logs.options = SuiteOptions(c.name);
  logs.report_missing = !TruthAt(row, "summary_exists") || !TruthAt(row, "quality_gate_found");
  if (logs.report_missing) return logs;
  RequireKeys(kRuntimeKeys, row, place, logs.evidence);
  logs.bullets = BulletsOfRow(row);
  logs.options.decode_baseline = NumberAt(row, "decode_baseline");
  const double target = NumberAt(row, "decode_drop_target", logs.options.decode_drop_target);
  if (target > logs.options.decode_drop_target) {
    logs.notes.push_back(
        fmt::format("the suite was run with decode_drop_target {:.6g}, but its own is {:.6g}",
                    target, logs.options.decode_drop_target));
  }
  logs.options.decode_drop_target = target;
  logs.facts = FactsOfRow(row);
  return logs;
}

}  // namespace kv::mnn::logs
