// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/summary.h"

#include <algorithm>
#include <cmath>

#include "lib/study/gate/engine.h"

namespace kv::gate {
namespace {

template <typename T>
Json NullableWhole(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json TextOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

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
  const bool is_flag = outcome.rule.is_flag;
  Json json = {{"metric", outcome.rule.metric},
               {"op", Name(outcome.rule.op)},
               {"limit", FigureJson(outcome.rule.limit, is_flag)},
               {"value", outcome.value ? FigureJson(*outcome.value, is_flag) : Json(nullptr)},
               {"margin", NumberJson(outcome.margin)},
               {"status", Name(outcome.status)},
               {"reason", outcome.reason},
               {"required", outcome.rule.required},
               {"where", WhereJson(outcome.where)},
               {"reproduce", outcome.reproduce.empty() ? Json(nullptr) : Json(outcome.reproduce)}};
  if (!outcome.rule.word.empty()) json["word"] = outcome.rule.word;
  if (outcome.baseline) json["baseline"] = FigureJson(*outcome.baseline, is_flag);
  if (outcome.pinned) json["against"] = "pinned";
  if (outcome.engine_value) json["engine_value"] = FigureJson(*outcome.engine_value, is_flag);
  if (outcome.engine_pass) json["engine_pass"] = *outcome.engine_pass;
  return json;
}

// The figures of one voice that this case knows of, dots becoming objects; nulls included.
Json Figures(Engines engines, const Measurements& measured, Voice voice) {
  Json json = Json::object();
  for (const MetricInfo* info : Metrics(engines)) {
    const Measurement* found = measured.Find(info->name);
    if (info->voice != voice || found == nullptr) continue;
    const std::string name(info->name);
    const size_t dot = name.find('.');
    Json& place = dot == name.npos ? json[name] : json[name.substr(0, dot)][name.substr(dot + 1)];
    place = found->value ? FigureJson(*found->value, info->is_flag) : Json(nullptr);
  }
  return json;
}

Json Reasons(Engines engines, const Measurements& measured) {
  Json json = Json::object();
  for (const MetricInfo* info : Metrics(engines)) {
    const Measurement* found = measured.Find(info->name);
    if (found != nullptr && !found->value) json[std::string(info->name)] = found->reason;
  }
  return json;
}

Json ParamsJson(const Params& params) {
  Json json = Json::object();
  for (const auto& [name, value] : params) {
    const auto* number = std::get_if<double>(&value);
    json[name] =
        number != nullptr ? FigureJson(*number, false) : Json(std::get<std::string>(value));
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
          {"relative", NumberJson(noise.relative())}};
}

Json RowJson(const RowFigures& row) {
  return {{"prompt_tokens", row.prompt_tokens},
          {"decode_tokens", row.decode_tokens},
          {"h2o_lossy_ratio", row.lossy_ratio},
          {"h2o_lossless_ratio", row.lossless_ratio},
          {"whole_model_ratio", row.whole_model_ratio},
          {"measured_ratio", NumberJson(row.measured_ratio)},
          {"attention_error_mean", NumberJson(row.attention_error_mean)}};
}

Json CaseJson(Engines engines, const CaseResult& result) {
  const CaseSpec& spec = result.spec;
  Json json = {{"name", spec.name},
               {"suite", spec.suite},
               {"mode", spec.mode},
               {"status", Name(result.status)},
               {"reason", result.reason},
               {"origin", Name(result.origin)},
               {"snapshot", TextOrNull(spec.snapshot)},
               {"snapshot_xxh3", TextOrNull(result.snapshot_hash)},
               {"trace", TextOrNull(spec.trace)},
               {"trace_xxh3", TextOrNull(result.trace_hash)},
               {"params", ParamsJson(spec.params)}};
  json["rules"] = Json::array();
  for (const RuleOutcome& rule : result.rules) json["rules"].push_back(RuleJson(rule));
  json["engine"] =
      result.logs ? result.logs->row : Figures(engines, result.measured, Voice::kOriginal);
  json["true_figures"] =
      result.logs ? result.logs->true_figures : Figures(engines, result.measured, Voice::kTrue);
  if (result.reference) json["reference"] = *result.reference;
  json["not_measured"] = Reasons(engines, result.measured);
  json["rows"] = Json::array();
  for (const RowFigures& row : result.rows) json["rows"].push_back(RowJson(row));
  json["layers"] = Json::array();
  for (const LayerFigures& layer : result.layers) {
    json["layers"].push_back({{"layer", layer.layer},
                              {"k_ratio", NumberJson(layer.k_ratio)},
                              {"v_ratio", NumberJson(layer.v_ratio)},
                              {"attention_error", NumberJson(layer.attention_error)}});
  }
  json["resident_over_time"] = Json::array();
  for (const ResidentSample& sample : result.resident_over_time) {
    json["resident_over_time"].push_back({{"token", sample.token}, {"bytes", sample.bytes}});
  }
  json["baseline_noise"] = NoiseJson(result.noise);
  json["warnings"] = result.warnings;
  return json;
}

Json BaselineJson(const std::optional<Baseline>& baseline, const BaselineFindings& found) {
  if (!baseline) return nullptr;
  return {{"file", baseline->file},
          {"generated_at", TextOrNull(baseline->generated_at)},
          {"commit", TextOrNull(baseline->commit)},
          {"verdict", TextOrNull(baseline->verdict)},
          {"missing_cases", found.missing_cases},
          {"problems", found.problems}};
}

}  // namespace

Json RowOf(const CaseResult& result, const OutputNames& outputs) {
  return result.logs ? result.logs->row : result.spec.engine->report.row(result, outputs);
}

Json SummaryJson(const GateResult& result, const std::string& generated_at,
                 const OutputNames& outputs) {
  Json json = Json::object();
  json["generated_at"] = TextOrNull(generated_at);
  json["commit"] = TextOrNull(result.commit);
  json["overall_pass"] = result.passed();
  json["verdict"] = result.verdict();
  json["reason"] = result.reason();
  json["total_cases"] = result.cases.size();
  ForEachSuite(result.engines, [&](const SuiteInfo& suite) {
    json[CountKey(suite)] =
        std::count_if(result.cases.begin(), result.cases.end(),
                      [&](const CaseResult& item) { return item.spec.suite == suite.name; });
  });
  json["passed_cases"] = result.count(Status::kPass);
  json["failed_cases"] = result.count(Status::kFail);
  json["not_run_cases"] = result.count(Status::kNotRun);
  json["inconclusive_cases"] = result.count(Status::kInconclusive);
  json["rows"] = Json::array();
  for (const CaseResult& item : result.cases) json["rows"].push_back(RowOf(item, outputs));
  json["cases"] = Json::array();
  for (const CaseResult& item : result.cases)
    json["cases"].push_back(CaseJson(result.engines, item));
  const Noise* noise = result.worst_noise();
  json["baseline_noise"] = NoiseJson(noise == nullptr ? Noise{} : *noise);
  json["baseline"] = BaselineJson(result.baseline, result.of_baseline);
  json["pinned"] = BaselineJson(result.pinned, result.of_pinned);
  if (result.engine_logs) json["engine_logs"] = *result.engine_logs;
  return json;
}

}  // namespace kv::gate
