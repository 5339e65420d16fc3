// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/quant_plan.h"

#include <fmt/format.h>

#include "formats/run/json_fields.h"
#include "lib/core/base/error.h"
#include "lib/study/quantisation/report.h"

namespace kv {
namespace {

constexpr uint64_t kMostLayer = 65535;

QuantPlan PlanOf(const nlohmann::json& document) {
  const auto layers = document.find("layers");
  if (layers == document.end() || !layers->is_array() || layers->empty()) {
    throw Error(Finding::kBadField, "'layers' is no list of layers");
  }
  QuantPlan plan;
  for (const nlohmann::json& item : *layers) {
    if (!item.is_object()) throw Error(Finding::kBadField, "an entry of 'layers' is no object");
    const auto number = run::CountField(item, "layer", kMostLayer);
    QuantPlan::Layer layer{static_cast<uint32_t>(number.value_or(0)), run::TextField(item, "k"),
                           run::TextField(item, "v")};
    if (!number) throw Error(Finding::kBadField, "an entry of 'layers' has no 'layer'");
    for (const std::string& name : {layer.k, layer.v}) {
      if (quant::FindCacheType(name) == nullptr) {
        throw Error(Finding::kBadField,
                    fmt::format("layer {}: '{}' is no cache type", layer.layer, Escaped(name)));
      }
    }
    if (!plan.layers.empty() && plan.layers.back().layer >= layer.layer) {
      throw Error(Finding::kDuplicateName, fmt::format("layer {} comes after layer {}", layer.layer,
                                                       plan.layers.back().layer));
    }
    plan.layers.push_back(std::move(layer));
  }
  return plan;
}

}  // namespace

QuantPlan ReadQuantPlan(const std::string& path) {
  const auto file = FileSource::Open(path);
  const nlohmann::json document = run::ReadDocument(*file, "kvtool.quant-plan/1");
  try {
    return PlanOf(document);
  } catch (Error& error) {
    throw error.File(path);
  }
}

nlohmann::ordered_json QuantPlanJson(const quantisation::ReplayRequest& request,
                                     const quantisation::ReplayResult& result,
                                     const std::vector<size_t>& choice) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (size_t l = 0; l < choice.size(); ++l) {
    const quantisation::TypePair& pair = result.pairs[choice[l]];
    layers.push_back({{"layer", result.layers[l].layer},
                      {"k", TypeName(request, pair, true)},
                      {"v", TypeName(request, pair, false)}});
  }
  return {{"layers", std::move(layers)}};
}

}  // namespace kv
