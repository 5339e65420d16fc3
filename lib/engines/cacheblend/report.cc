// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/core/base/number.h"
#include "lib/core/base/word.h"

namespace kv::blend {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const auto& value) { return value ? Json(*value) : Json(nullptr); }

// As float prints, so that a score of 0.1f is 0.1.
Json FloatOrNull(const std::optional<float>& value) {
  return value && std::isfinite(*value) ? Json(ShortestDouble(*value)) : Json(nullptr);
}

Json ModelJson(const CachePair& caches, const ReportExtras& extras) {
  const KvRows::Layer& first = caches.layers().front();
  Json json = {{"layers", caches.layers().size()}};
  json["q_heads"] = extras.trace == nullptr ? Json(nullptr) : Json(extras.trace->query_heads);
  json["kv_heads"] = first.heads;
  json["head_dim"] = first.k_dim;
  json["dtype"] = Name(caches.dtype());
  Json rope = {
      {"style", nullptr}, {"theta", nullptr}, {"rotary_dim", nullptr}, {"scaling", nullptr}};
  if (caches.rope()) {
    const Rope& of_first = caches.rope()->Of(first.index);
    rope["style"] = Name(of_first.pairs);
    if (of_first.scaling.kind != RopeScaling::Kind::kGiven) rope["theta"] = of_first.theta;
    rope["rotary_dim"] = of_first.DimOf(first.k_dim);
    if (of_first.scaling.kind != RopeScaling::Kind::kNone)
      rope["scaling"] = WithUnderscores(Name(of_first.scaling));
    if (!caches.rope()->layers.empty()) {
      for (const KvRows::Layer& layer : caches.layers())
        rope["layer_thetas"].push_back(caches.rope()->Of(layer.index).theta);
    }
  }
  rope["old_state"] = Name(caches.old().state);
  rope["full_state"] = caches.full().unrotated ? "unrotated" : "rotated";
  json["rope"] = std::move(rope);
  return json;
}

Json TokensJson(const CachePair& caches, const Result& result) {
  Json json = {
      {"total", result.tokens}, {"suffix", result.request.suffix}, {"covered", result.covered}};
  json["chunks"] = Json::array();
  for (size_t i = 0; i < caches.old().chunks.size(); ++i) {
    const Chunk& chunk = caches.old().chunks[i];
    json["chunks"].push_back({{"index", i},
                              {"file", chunk.path},
                              {"start", chunk.start},
                              {"length", chunk.tokens},
                              {"is_prefix", chunk.is_prefix()}});
  }
  return json;
}

Json SelectionJson(const Result& result, const ReportExtras& extras) {
  const Selection& selection = result.selection;
  Json json = {{"variant", VariantName(result.request)},
               {"engine", Name(result.request.engine)},
               {"check_layer", result.request.check_layer},
               {"recomputed_fraction", result.request.ratio},
               {"topk", selection.topk},
               {"count", selection.indices.size()},
               {"score_dtype", Name(result.request.emulate.value_or(DType::kF32))},
               {"tie_rule", "lower-index"}};
  json["boundary"] = {{"kept_min", FloatOrNull(selection.kept_min)},
                      {"dropped_max", FloatOrNull(selection.dropped_max)},
                      {"margin", OrNull(selection.margin)},
                      {"ties", selection.ties}};
  if (!result.filtered.empty()) {
    json["filters"] = Json::array();
    for (const Filtered& later : result.filtered) {
      json["filters"].push_back({{"check_layer", later.filter.layer},
                                 {"ratio", later.filter.ratio},
                                 {"topk", later.topk},
                                 {"indices", later.indices}});
    }
    json["filtered"] = {{"compute_share", result.filtered_compute_share},
                        {"dev_v_remaining_frac", result.filtered_left.v},
                        {"dev_k_remaining_frac", result.filtered_left.k}};
  }
  json["nonfinite"] = result.nonfinite;
  if (extras.indices_file.empty()) {
    json["indices"] = selection.indices;
  } else {
    json["indices"] = nullptr;
    json["indices_file"] = extras.indices_file;
  }
  json["per_chunk"] = Json::array();
  for (size_t i = 0; i < result.chunk_selected.size(); ++i) {
    const uint64_t selected = result.chunk_selected[i];
    json["per_chunk"].push_back(
        {{"index", i},
         {"selected", selected},
         {"share", selection.topk == 0
                       ? 0.0
                       : static_cast<double>(selected) / static_cast<double>(selection.topk)}});
  }
  return json;
}

Json DeviationJson(const TensorDeviation& deviation, bool detail) {
  Json json = {{"sum", deviation.sum},
               {"relative", deviation.relative()},
               {"rel_mean", deviation.rel_mean},
               {"rel_p50", deviation.rel_p50},
               {"rel_p90", deviation.rel_p90},
               {"rel_p99", deviation.rel_p99},
               {"rel_max", deviation.rel_max},
               {"chunk_means", deviation.chunk_means},
               {"nonfinite", deviation.nonfinite}};
  if (detail) json["tokens"] = deviation.tokens;
  return json;
}

Json LayersJson(const Result& result, bool detail) {
  Json layers = Json::array();
  for (size_t i = 0; i < result.layers.size(); ++i) {
    const LayerRanks& ranks = result.ranks[i];
    Json layer = {{"layer", result.layers[i].layer}};
    layer["dev_v"] = DeviationJson(result.layers[i].v, detail);
    layer["dev_k"] = DeviationJson(result.layers[i].k, detail);
    layer["overlap"] = ranks.with_check ? Json(ranks.with_check->share) : Json(nullptr);
    layer["jaccard"] = ranks.with_check ? Json(ranks.with_check->jaccard) : Json(nullptr);
    layer["spearman_prev"] = OrNull(ranks.spearman_prev);
    layers.push_back(std::move(layer));
  }
  return layers;
}

void PutAttention(const std::optional<AttentionError>& attention, Json& json) {
  json["attn_dev_l2"] = attention ? Json(attention->dev_l2) : Json(nullptr);
  json["attn_out_rel_l2"] = attention ? Json(attention->out_rel_l2) : Json(nullptr);
  json["attn_out_cos_mean"] = attention ? Json(attention->out_cos_mean) : Json(nullptr);
}

Json RemainingJson(const Remaining& remaining) {
  return {{"dev_v_remaining_frac", remaining.v}, {"dev_k_remaining_frac", remaining.k}};
}

void PutCurveLayer(const CurveLayer& layer, Json& json) {
  json["dev_v_remaining"] = layer.v_sum;
  json["dev_v_remaining_frac"] = layer.selected.v;
  json["dev_k_remaining"] = layer.k_sum;
  json["dev_k_remaining_frac"] = layer.selected.k;
  PutAttention(layer.attention, json);
  json["oracle"] = RemainingJson(layer.oracle);
  json["random"] = RemainingJson(layer.random);
  json["first_of_chunk"] = RemainingJson(layer.first_of_chunk);
}

Json CurveJson(const Result& result, const ReportExtras& extras) {
  Json curve = Json::array();
  for (const CurvePoint& point : result.curve) {
    Json json = {{"recomputed_fraction", point.ratio},
                 {"topk", point.selection.topk},
                 {"compute_share", point.compute_share}};
    json["indices"] = extras.indices_file.empty() ? Json(point.selection.indices) : Json(nullptr);
    json["layers"] = Json::array();
    for (const CurveLayer& layer : point.layers) {
      Json of_layer = {{"layer", layer.layer}};
      PutCurveLayer(layer, of_layer);
      json["layers"].push_back(std::move(of_layer));
    }
    json["mean"] = Json::object();
    PutCurveLayer(point.mean, json["mean"]);
    curve.push_back(std::move(json));
  }
  return curve;
}

Json LeakJson(const Result& result) {
  Json json = {{"extra_keys_mean", result.extra_keys_mean}, {"leaked_mass_mean", nullptr}};
  double mass = 0;
  json["layers"] = Json::array();
  for (const LayerLeak& leak : result.leaks) {
    mass += leak.error.leaked_mass_mean;
    Json layer = {{"layer", leak.layer},
                  {"queries", leak.error.queries},
                  {"leaked_mass_mean", leak.error.leaked_mass_mean},
                  {"leak_out_rel_l2", leak.error.leak_out_rel_l2}};
    layer["recomputed_out_rel_l2"] = leak.error.against_full.out_rel_l2;
    layer["recomputed_out_cos_mean"] = leak.error.against_full.out_cos_mean;
    json["layers"].push_back(std::move(layer));
  }
  if (!result.leaks.empty()) {
    json["leaked_mass_mean"] = mass / static_cast<double>(result.leaks.size());
  }
  return json;
}

Json Microseconds(double seconds) { return std::llround(seconds * 1e6); }

Json ControllerJson(const std::optional<Controller>& plan) {
  if (!plan) return nullptr;
  return {{"prefill_us", Microseconds(plan->prefill_seconds)},
          {"load_bytes_per_second", plan->bytes_per_second},
          {"prefill_us_per_layer", Microseconds(plan->prefill_seconds_per_layer)},
          {"load_us_per_layer", Microseconds(plan->load_seconds_per_layer)},
          {"hidden_fraction", plan->ratio_hide},
          {"recomputed_fraction", plan->ratio}};
}

Json GatesJson(const std::vector<GateResult>& gates) {
  Json json = Json::array();
  for (const GateResult& gate : gates) {
    json.push_back({{"name", gate.gate.Name()},
                    {"value", OrNull(gate.value)},
                    {"op", gate.gate.at_most ? "<=" : ">="},
                    {"limit", gate.gate.limit},
                    {"pass", gate.pass}});
  }
  return json;
}

}  // namespace

bool ReportExtras::pass() const {
  for (const GateResult& gate : gates) {
    if (!gate.pass) return false;
  }
  return true;
}

Json ReportJson(const CachePair& caches, const Result& result, const ReportExtras& extras) {
  Json json = Json::object();
  json["model"] = ModelJson(caches, extras);
  json["tokens"] = TokensJson(caches, result);
  json["selection"] = SelectionJson(result, extras);
  json["rows"] = "oracle";
  json["mask"] = Name(result.request.mask);
  json["layers"] = LayersJson(result, extras.detail);
  json["curve"] = CurveJson(result, extras);
  json["mask_leak"] = LeakJson(result);
  json["controller"] = ControllerJson(extras.controller);
  json["faults"] = Json::array();
  for (const Fault& fault : result.faults) {
    json["faults"].push_back(
        {{"name", fault.name}, {"text", fault.text}, {"value", OrNull(fault.value)}});
  }
  json["gates"] = GatesJson(extras.gates);
  json["pass"] = extras.pass();
  json["warnings"] = result.warnings;
  return json;
}

}  // namespace kv::blend
