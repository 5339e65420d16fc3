// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/report.h"

#include <nlohmann/json.hpp>

#include "lib/study/analysis/tensor_json.h"

namespace kv::analysis {
namespace {

using Json = nlohmann::ordered_json;

Json TotalsJson(const Totals& totals) {
  if (totals.raw_bytes == 0) return {};
  Json json = CodedJson(totals);
  json["own_bytes"] = totals.own_bytes;
  json["own_ratio"] = totals.own_ratio();
  json["bits_per_value"] = totals.reached();
  json["bound_bits_per_value"] = totals.bound();
  json["bound_ratio"] = totals.bound_ratio();
  json["decodes"] = totals.decodes;
  return json;
}

Json ExtremeJson(const Extreme& extreme) {
  return {
      {"layer", extreme.layer}, {"tensor", extreme.is_value ? "v" : "k"}, {"ratio", extreme.ratio}};
}

}  // namespace

Json AnalysisJson(const Analysis& analysis) {
  Json json;
  json["summary"] = {{"total", TotalsJson(analysis.total())},
                     {"k", TotalsJson(analysis.k)},
                     {"v", TotalsJson(analysis.v)},
                     {"best", ExtremeJson(analysis.best)},
                     {"worst", ExtremeJson(analysis.worst)}};
  json["layers"] = Json::array();
  for (const LayerAnalysis& layer : analysis.layers) {
    Json entry = {{"layer", layer.layer}};
    if (!layer.label.empty()) entry["label"] = layer.label;
    if (!layer.group.empty()) entry["group"] = layer.group;
    entry["k"] = layer.k ? TensorJson(*layer.k) : Json();
    entry["v"] = layer.v ? TensorJson(*layer.v) : Json();
    json["layers"].push_back(std::move(entry));
  }
  json["findings"] = analysis.findings;
  return json;
}

}  // namespace kv::analysis
