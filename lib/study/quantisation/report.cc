// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/quantisation/report.h"

#include <fmt/format.h>

namespace kv::quantisation {
namespace {

using nlohmann::ordered_json;

std::string_view Name(Q8Rounding rounding) {
  if (rounding == Q8Rounding::kAvx) return "avx";
  return rounding == Q8Rounding::kReference ? "ref" : "arm";
}

ordered_json FiguresJson(const PairFigures& figures) {
  return {{"output_error", figures.output_error},
          {"one_minus_cosine", figures.one_minus_cosine},
          {"attention_kl", figures.attention_kl},
          {"mass_moved", figures.mass_moved},
          {"top_8", figures.top8},
          {"top_64", figures.top64}};
}

ordered_json KlJson(const std::optional<eviction::PredictedKl>& kl) {
  if (!kl) return nullptr;
  const eviction::Calibration& calibration = kl->calibration();
  return {{"method", eviction::Name(kl->method)},
          {"nats", kl->nats},
          {"standard_error", kl->standard_error},
          {"expected_nats", kl->expected()},
          {"low_nats", kl->low()},
          {"high_nats", kl->high()},
          {"rows", kl->rows},
          {"of_rows", kl->population},
          {"samples", kl->samples},
          {"calibration",
           {{"p10", calibration.p10}, {"median", calibration.median}, {"p90", calibration.p90}}}};
}

const quant::CacheType* TypeOf(const ReplayRequest& request, const TypePair& pair, bool is_key) {
  const uint32_t at = is_key ? pair.k : pair.v;
  if (at == TypePair::kFull) return nullptr;
  return (is_key ? request.store.k_types : request.store.v_types)[at];
}

// An infinite ratio of signal to noise is null: nothing changed.
ordered_json SnrJson(const std::vector<double>& of_types, uint32_t at) {
  if (at == TypePair::kFull || at >= of_types.size()) return nullptr;
  return of_types[at];
}

ordered_json LayerJson(const ReplayResult& result, const LayerFigures& layer, size_t pair,
                       bool detail) {
  ordered_json json = {{"layer", layer.layer},
                       {"bytes", layer.BytesOf(result.pairs[pair])},
                       {"k_snr_db", SnrJson(layer.k_snr, result.pairs[pair].k)},
                       {"v_snr_db", SnrJson(layer.v_snr, result.pairs[pair].v)}};
  json.update(FiguresJson(layer.all[pair]));
  json["undefined_rows"] = layer.all[pair].undefined_rows;
  if (!detail) return json;
  json["heads"] = ordered_json::array();
  for (const PairFigures& head : layer.heads[pair]) json["heads"].push_back(FiguresJson(head));
  return json;
}

}  // namespace

std::string_view TypeName(const ReplayRequest& request, const TypePair& pair, bool is_key) {
  const quant::CacheType* type = TypeOf(request, pair, is_key);
  return type != nullptr ? type->name : TypeOf(request, request.pairs.front(), is_key)->name;
}

std::string EngineFlags(const ReplayRequest& request, const TypePair& pair) {
  const quant::CacheType* k = quant::FindCacheType(TypeName(request, pair, true));
  const quant::CacheType* v = quant::FindCacheType(TypeName(request, pair, false));
  const auto is_flag = [&](const quant::CacheType& type) {
    return type.dtype && type.name == kv::Name(*type.dtype) &&
           request.head_dim % Info(*type.dtype).block_elements == 0;
  };
  if (!is_flag(*k) || !is_flag(*v)) return {};
  return fmt::format("-ctk {} -ctv {}{}", k->name, v->name,
                     IsBlockQuantised(*v->dtype) ? " -fa on" : "");
}

ordered_json OutcomeJson(const Outcome& outcome, uint64_t tokens) {
  ordered_json json = {{"bytes", outcome.bytes},
                       {"full_bytes", outcome.full_bytes},
                       {"ratio", outcome.ratio()},
                       {"bytes_per_token", outcome.bytes / static_cast<double>(tokens)},
                       {"bytes_per_value", 2 / outcome.ratio()}};
  json.update(FiguresJson(outcome.mean));
  json["worst_output_error"] = outcome.worst_output_error;
  json["predicted_kl"] = KlJson(outcome.kl);
  return json;
}

ordered_json ReportJson(const Snapshot& snapshot, const AttentionTrace& trace,
                        const ReplayRequest& request, const ReplayResult& result, bool detail) {
  const KvTensor& k = snapshot.layers.front().k;
  const StoreRequest& store = request.store;
  ordered_json json = {{"trace",
                        {{"layers", result.layers.size()},
                         {"query_heads", trace.query_heads},
                         {"kv_heads", k.heads},
                         {"head_dim", k.head_dim},
                         {"tokens", result.tokens},
                         {"first_row", request.prompt_tokens},
                         {"rows", result.measured.positions.size()},
                         {"of_rows", result.measured.population},
                         {"open_loop", true}}},
                       {"settings",
                        {{"input_type", kv::Name(k.dtype)},
                         {"rounding", Name(store.rounding)},
                         {"hadamard", store.rotate},
                         {"engine_q", store.engine_q == EngineQ::kCpu ? "cpu" : "exact"},
                         {"keep_first", store.keep_first},
                         {"keep_last", store.keep_last},
                         {"seed", request.seed}}},
                       {"missing_layers", result.missing_layers},
                       {"runs", ordered_json::array()}};
  for (size_t pair = 0; pair < result.pairs.size(); ++pair) {
    const TypePair& types = result.pairs[pair];
    const std::string flags = EngineFlags(request, types);
    ordered_json run = {{"k", TypeName(request, types, true)},
                        {"v", TypeName(request, types, false)},
                        {"flags", flags.empty() ? ordered_json(nullptr) : ordered_json(flags)}};
    run.update(OutcomeJson(EvaluatePair(result, pair), result.tokens));
    run["layers"] = ordered_json::array();
    for (const LayerFigures& layer : result.layers)
      run["layers"].push_back(LayerJson(result, layer, pair, detail));
    json["runs"].push_back(std::move(run));
  }
  return json;
}

}  // namespace kv::quantisation
