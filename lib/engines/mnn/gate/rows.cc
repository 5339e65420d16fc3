// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/rows.h"

#include <algorithm>

#include "lib/engines/mnn/gate/cases.h"
#include "lib/engines/mnn/gate/metrics.h"
#include "lib/engines/mnn/logs/analyzer.h"

namespace kv::mnn {
namespace {

using namespace gate;

Json ValueOf(const Measurements& measured, std::string_view name) {
  const std::optional<double> value = measured.Value(name);
  const auto metrics = GateMetrics();
  const auto info = std::find_if(metrics.begin(), metrics.end(),
                                 [&](const MetricInfo& one) { return one.name == name; });
  return value ? FigureJson(*value, info->is_flag) : Json(nullptr);
}

const Rule* LimitOn(const CaseSpec& spec, std::string_view metric, Op op) {
  const auto found = std::find_if(spec.rules.begin(), spec.rules.end(), [&](const Rule& rule) {
    return rule.metric == metric && rule.op == op;
  });
  return found == spec.rules.end() ? nullptr : &*found;
}

std::string QualityStatus(Status status) {
  switch (status) {
    case Status::kPass:
      return "PASS";
    case Status::kFail:
      return "FAIL";
    case Status::kNotRun:
      return "NOT_RUN";
    case Status::kInconclusive:
      return "INCONCLUSIVE";
  }
  return "NOT_RUN";
}

void PutFigures(const Measurements& measured, std::initializer_list<const char*> names, Json& row) {
  for (const char* name : names) row[name] = ValueOf(measured, name);
}

void PutDropTarget(const CaseSpec& spec, Json& row) {
  const Rule* drop = LimitOn(spec, "decode_drop_ratio", Op::kAtMost);
  row["decode_drop_target"] = drop == nullptr ? Json(nullptr) : Json(drop->limit);
}

void PutRuntime(const CaseResult& result, Json& row) {
  const Measurements& measured = result.measured;
  row["quality_status"] = QualityStatus(result.status);
  PutFigures(measured, {"lossy_best", "lossless_selected_value"}, row);
  row["decode_aggregation"] = "avg";
  PutFigures(measured, {"decode_gate_tps", "decode_best", "decode_baseline", "decode_drop_ratio"},
             row);
  PutDropTarget(result.spec, row);
  PutFigures(measured,
             {"runtime_decomp_best_us", "runtime_async_wait_best_us",
              "runtime_async_wait_headroom_us", "runtime_async_wait_headroom_ratio"},
             row);
  // The original warns of waits that pass with little to spare.
  const std::optional<double> headroom = measured.Value("runtime_async_wait_headroom_ratio");
  row["runtime_async_wait_headroom_warn"] =
      headroom && *headroom >= 0 &&
      *headroom < logs::AnalyzerOptions{}.async_wait_headroom_warn_ratio;
  PutFigures(measured,
             {"runtime_queue_peak_best", "runtime_fallback_best", "runtime_backpressure_skip_best",
              "runtime_decode_cache_hit_best", "runtime_decode_cache_miss_best",
              "kv_content_consistency_pass", "kv_invalid_log_count"},
             row);
}

void PutLlmDemo(const CaseResult& result, Json& row) {
  const Measurements& measured = result.measured;
  PutFigures(measured, {"baseline_decode_tps_avg", "candidate_decode_tps_avg", "decode_drop_ratio"},
             row);
  PutDropTarget(result.spec, row);
  PutFigures(measured,
             {"candidate_lossy_ratio_avg", "candidate_lossless_ratio_avg",
              "candidate_runtime_total_ratio_avg", "runtime_decomp_best_us"},
             row);
  row["decode_cache_hit_best"] = ValueOf(measured, "runtime_decode_cache_hit_best");
  row["decode_pass"] = ValueOf(measured, "decode_pass");
  row["run_order"] = "";
}

// The original keeps no rules: those that its row shows are put together again.
void AddOriginalRules(const Json& row, CaseView& c) {
  const auto add = [&](const char* metric, double value, double limit) {
    Measurements measured;
    measured.Set(metric, value);
    c.rules.push_back(Evaluate({metric, Op::kAtMost, limit}, measured));
  };
  const double target = NumberIn(row, "decode_drop_target").value_or(0);
  const double baseline = std::max(NumberIn(row, "decode_baseline").value_or(0),
                                   NumberIn(row, "baseline_decode_tps_avg").value_or(0));
  const auto drop = NumberIn(row, "decode_drop_ratio");
  if (drop && baseline > 0) add("decode_drop_ratio", *drop, target);
  const auto wait = NumberIn(row, "runtime_async_wait_best_us");
  const auto headroom = NumberIn(row, "runtime_async_wait_headroom_us");
  if (wait && headroom && *headroom != 0) {
    add("runtime_async_wait_best_us", *wait, *wait + *headroom);
  }
}

}  // namespace

CaseView ReadRow(const Json& row) {
  CaseView c;
  c.name = TextAt(row, "case", "unnamed");
  c.suite = TextAt(row, "suite");
  c.mode = TextAt(row, "mode");
  c.origin = "engine";
  c.reason = TextAt(row, "failure_reason");
  c.status = TruthAt(row, "overall_pass")           ? Status::kPass
             : c.reason.find("not run: ") == 0      ? Status::kNotRun
             : c.reason.find("inconclusive: ") == 0 ? Status::kInconclusive
                                                    : Status::kFail;
  // The parts of the engine's verdict, should the whole deny them.
  const bool denied = NumberIn(row, "return_code").value_or(0) != 0 ||
                      FlagIn(row, "decode_pass") == false ||
                      FlagIn(row, "kv_content_consistency_pass") == false ||
                      TextAt(row, "quality_status") == "FAIL";
  if (c.status == Status::kPass && denied) c.status = Status::kFail;
  AddOriginalRules(row, c);
  for (const auto& item : row.items()) {
    const bool number = item.value().is_number() && item.key() != "return_code";
    if (number || item.key() == "kv_content_consistency_pass") {
      c.engine.emplace_back(item.key(), item.value());
    }
  }
  return c;
}

Json RowOf(const CaseResult& result, const OutputNames& outputs) {
  const bool is_runtime = result.spec.suite == kRuntimeSuite;
  const bool ran = result.origin != Origin::kNone;
  Json row = {{"suite", result.spec.suite},
              {"case", result.spec.name},
              {"mode", result.spec.mode},
              {"return_code", ran ? Json(0) : Json(nullptr)}};
  if (is_runtime) {
    row["summary_exists"] = ran && !outputs.summary_md.empty();
    row["quality_gate_found"] = ran;
  }
  row["failure_reason"] = result.status == Status::kPass     ? std::string()
                          : result.status == Status::kNotRun ? "not run: " + result.reason
                          : result.status == Status::kInconclusive
                              ? "inconclusive: " + result.reason
                              : result.reason;
  row["overall_pass"] = result.status == Status::kPass;
  row["summary"] = outputs.summary_md;
  if (!is_runtime) row["report_json"] = "";
  row["console_log"] = "";
  if (is_runtime) {
    PutRuntime(result, row);
  } else {
    PutLlmDemo(result, row);
  }
  return row;
}

}  // namespace kv::mnn
