// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/summary.h"

#include <algorithm>
#include <cmath>

namespace kv::gate {
namespace {

Json Nullable(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

template <typename T>
Json NullableWhole(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Counts and bytes stay whole numbers.
Json Figure(double value, bool is_flag) {
  if (std::isnan(value)) return nullptr;
  if (is_flag) return value != 0;
  constexpr double kExact = 9007199254740992.0;
  if (value == static_cast<double>(static_cast<int64_t>(std::clamp(value, -kExact, kExact)))) {
    return static_cast<int64_t>(value);
  }
  return value;
}

Json ValueOf(const Measurements& measured, std::string_view name) {
  const std::optional<double> value = measured.Value(name);
  return value ? Figure(*value, FindMetric(name)->is_flag) : Json(nullptr);
}

Json WhereJson(const Where& where) {
  Json json = {{"layer", NullableWhole(where.layer)},
               {"kind", where.kind.empty() ? Json(nullptr) : Json(where.kind)},
               {"head", NullableWhole(where.head)},
               {"token_begin", NullableWhole(where.token_begin)},
               {"token_end", NullableWhole(where.token_end)}};
  if (where.dim) json["dim"] = *where.dim;
  if (!where.log.empty()) json["log"] = where.log;
  return json;
}

Json RuleJson(const RuleOutcome& outcome) {
  const bool is_flag = IsFlag(outcome.rule.metric);
  Json json = {{"metric", outcome.rule.metric},
               {"op", Name(outcome.rule.op)},
               {"limit", Figure(outcome.rule.limit, is_flag)},
               {"value", outcome.value ? Figure(*outcome.value, is_flag) : Json(nullptr)},
               {"margin", Nullable(outcome.margin)},
               {"status", Name(outcome.status)},
               {"reason", outcome.reason},
               {"required", outcome.rule.required},
               {"where", WhereJson(outcome.where)},
               {"reproduce", outcome.reproduce.empty() ? Json(nullptr) : Json(outcome.reproduce)}};
  if (outcome.baseline) json["baseline"] = Figure(*outcome.baseline, is_flag);
  if (outcome.engine_value) json["engine_value"] = Figure(*outcome.engine_value, is_flag);
  if (outcome.engine_pass) json["engine_pass"] = *outcome.engine_pass;
  return json;
}

// The figures of one voice that this case knows of, dots becoming objects; nulls included.
Json Figures(const Measurements& measured, Voice voice) {
  Json json = Json::object();
  for (const MetricInfo& info : Metrics()) {
    if (info.voice != voice || measured.Find(info.name) == nullptr) continue;
    const std::string name(info.name);
    const size_t dot = name.find('.');
    Json& place = dot == name.npos ? json[name] : json[name.substr(0, dot)][name.substr(dot + 1)];
    place = ValueOf(measured, info.name);
  }
  return json;
}

Json Reasons(const Measurements& measured) {
  Json json = Json::object();
  for (const MetricInfo& info : Metrics()) {
    const Measurement* found = measured.Find(info.name);
    if (found != nullptr && !found->value) json[std::string(info.name)] = found->reason;
  }
  return json;
}

Json ParamsJson(const Params& params) {
  Json json = Json::object();
  for (const auto& [name, value] : params) {
    const auto* number = std::get_if<double>(&value);
    json[name] = number != nullptr ? Figure(*number, false) : Json(std::get<std::string>(value));
  }
  return json;
}

Json NoiseJson(const Noise& noise) {
  const bool measured = !noise.baseline_tps.empty();
  return {{"runs", noise.baseline_tps.size()},
          {"attention_tps", noise.baseline_tps},
          {"median_tps", measured ? Json(noise.baseline()) : Json(nullptr)},
          {"candidate_attention_tps", noise.candidate_tps},
          {"candidate_median_tps", measured ? Json(noise.candidate()) : Json(nullptr)},
          {"relative", Nullable(noise.relative())}};
}

Json RowJson(const RowFigures& row) {
  return {{"prompt_tokens", row.prompt_tokens},
          {"decode_tokens", row.decode_tokens},
          {"h2o_lossy_ratio", row.lossy_ratio},
          {"h2o_lossless_ratio", row.lossless_ratio},
          {"whole_model_ratio", row.whole_model_ratio},
          {"measured_ratio", Nullable(row.measured_ratio)},
          {"attention_error_mean", Nullable(row.attention_error_mean)}};
}

Json CaseJson(const CaseResult& result) {
  const CaseSpec& spec = result.spec;
  Json json = {
      {"name", spec.name},
      {"suite", Name(spec.suite)},
      {"mode", spec.mode},
      {"status", Name(result.status)},
      {"reason", result.reason},
      {"origin", Name(result.origin)},
      {"snapshot", spec.snapshot.empty() ? Json(nullptr) : Json(spec.snapshot)},
      {"snapshot_xxh3", result.snapshot_hash.empty() ? Json(nullptr) : Json(result.snapshot_hash)},
      {"trace", spec.trace.empty() ? Json(nullptr) : Json(spec.trace)},
      {"params", ParamsJson(spec.params)}};
  json["rules"] = Json::array();
  for (const RuleOutcome& rule : result.rules) json["rules"].push_back(RuleJson(rule));
  json["engine"] = result.logs ? result.logs->row : Figures(result.measured, Voice::kOriginal);
  json["true_figures"] =
      result.logs ? result.logs->true_figures : Figures(result.measured, Voice::kTrue);
  if (result.reference) json["reference"] = *result.reference;
  json["not_measured"] = Reasons(result.measured);
  json["rows"] = Json::array();
  for (const RowFigures& row : result.rows) json["rows"].push_back(RowJson(row));
  json["layers"] = Json::array();
  for (const LayerFigures& layer : result.layers) {
    json["layers"].push_back({{"layer", layer.layer},
                              {"k_ratio", Nullable(layer.k_ratio)},
                              {"v_ratio", Nullable(layer.v_ratio)},
                              {"attention_error", Nullable(layer.attention_error)}});
  }
  json["resident_over_time"] = Json::array();
  for (const ResidentSample& sample : result.resident_over_time) {
    json["resident_over_time"].push_back({{"token", sample.token}, {"bytes", sample.bytes}});
  }
  json["baseline_noise"] = NoiseJson(result.noise);
  json["warnings"] = result.warnings;
  return json;
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
  // The original's warning: passed with less than 15% to spare.
  const std::optional<double> headroom = measured.Value("runtime_async_wait_headroom_ratio");
  row["runtime_async_wait_headroom_warn"] = headroom && *headroom >= 0 && *headroom < 0.15;
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

Json BaselineJson(const GateResult& result) {
  if (!result.baseline) return nullptr;
  const Baseline& baseline = *result.baseline;
  return {
      {"file", baseline.file},
      {"generated_at", baseline.generated_at.empty() ? Json(nullptr) : Json(baseline.generated_at)},
      {"verdict", baseline.verdict.empty() ? Json(nullptr) : Json(baseline.verdict)},
      {"missing_cases", result.missing_cases},
      {"problems", result.baseline_problems}};
}

}  // namespace

Json OriginalRow(const CaseResult& result, const OutputNames& outputs) {
  if (result.logs) return result.logs->row;
  const bool ran = result.origin != Origin::kNone;
  Json row = {{"suite", Name(result.spec.suite)},
              {"case", result.spec.name},
              {"mode", result.spec.mode},
              {"return_code", ran ? Json(0) : Json(nullptr)}};
  if (result.spec.suite == Suite::kRuntime) {
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
  if (result.spec.suite == Suite::kLlmDemo) row["report_json"] = "";
  row["console_log"] = "";
  if (result.spec.suite == Suite::kRuntime) {
    PutRuntime(result, row);
  } else {
    PutLlmDemo(result, row);
  }
  return row;
}

Json SummaryJson(const GateResult& result, const std::string& generated_at,
                 const OutputNames& outputs) {
  const auto cases_of = [&](Suite suite) {
    return std::count_if(result.cases.begin(), result.cases.end(),
                         [&](const CaseResult& item) { return item.spec.suite == suite; });
  };
  Json json = Json::object();
  json["generated_at"] = generated_at.empty() ? Json(nullptr) : Json(generated_at);
  json["overall_pass"] = result.passed();
  json["verdict"] = result.verdict();
  json["reason"] = result.reason();
  json["total_cases"] = result.cases.size();
  json["runtime_cases"] = cases_of(Suite::kRuntime);
  json["llm_demo_cases"] = cases_of(Suite::kLlmDemo);
  json["passed_cases"] = result.count(Status::kPass);
  json["failed_cases"] = result.count(Status::kFail);
  json["not_run_cases"] = result.count(Status::kNotRun);
  json["inconclusive_cases"] = result.count(Status::kInconclusive);
  json["rows"] = Json::array();
  for (const CaseResult& item : result.cases) json["rows"].push_back(OriginalRow(item, outputs));
  json["cases"] = Json::array();
  for (const CaseResult& item : result.cases) json["cases"].push_back(CaseJson(item));
  const Noise* noise = result.worst_noise();
  json["baseline_noise"] = NoiseJson(noise == nullptr ? Noise{} : *noise);
  json["baseline"] = BaselineJson(result);
  if (result.engine_logs) json["engine_logs"] = *result.engine_logs;
  return json;
}

}  // namespace kv::gate
