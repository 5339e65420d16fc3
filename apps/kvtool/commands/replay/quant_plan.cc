// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/quant_plan.h"

#include <algorithm>

#include "formats/json_fields.h"
#include "lib/core/base/error.h"
#include "lib/study/quantisation/report.h"

namespace kv {

using quantisation::ReplayRequest;
using quantisation::ReplayResult;
using quantisation::TypePair;

namespace {

constexpr uint64_t kMostLayer = 65535;

QuantPlan MakeQuantPlan(const nlohmann::json& document) {
  const auto layers = document.find("layers");
  if (layers == document.end() || !layers->is_array() || layers->empty()) {
    throw Error(Finding::kBadField, "'layers' is not a list of layers");
  }
  QuantPlan plan;
  for (const nlohmann::json& item : *layers) {
    if (!item.is_object()) throw Error(Finding::kBadField, "a 'layers' entry is not an object");
    const auto number = CountField(item, "layer", kMostLayer);
    QuantPlan::Layer layer{static_cast<uint32_t>(number.value_or(0)), TextField(item, "k"),
                           TextField(item, "v")};
    if (!number) throw Error(Finding::kBadField, "an entry of 'layers' has no 'layer'");
    for (const std::string& name : {layer.k, layer.v}) {
      if (quant::FindCacheType(name) == nullptr) {
        throw Error(Finding::kBadField, "layer {}: '{}' is not a cache type", layer.layer,
                    Escaped(name));
      }
    }
    if (!plan.layers.empty() && plan.layers.back().layer >= layer.layer) {
      throw Error(Finding::kDuplicateName, "layer {} is listed after layer {}: layers must ascend",
                  layer.layer, plan.layers.back().layer);
    }
    plan.layers.push_back(std::move(layer));
  }
  return plan;
}

// Throws kBadText, kBadVersion, kBadField.
QuantPlan ReadQuantPlan(const std::string& path) {
  const auto file = FileSource::OpenSmall(path, kLargestDocument, "a plan of types");
  const nlohmann::json document = ReadDocument(*file, "kvtool.quant-plan/1");
  try {
    return MakeQuantPlan(document);
  } catch (Error& error) {
    throw error.File(path);
  }
}

}  // namespace

QuantPlan MakeQuantPlan(const ReplayRequest& request, const ReplayResult& result,
                        const std::vector<size_t>& choice) {
  QuantPlan plan;
  for (size_t l = 0; l < choice.size(); ++l) {
    const TypePair& pair = result.pairs[choice[l]];
    plan.layers.push_back({result.layers[l].layer, std::string(TypeName(request, pair, true)),
                           std::string(TypeName(request, pair, false))});
  }
  return plan;
}

const Fields<QuantPlan>& QuantPlanFields() {
  using Layer = QuantPlan::Layer;
  static const Fields<Layer> layers = {{"layer", "Number of the layer", &Layer::layer},
                                       {"k", "Type of K", &Layer::k},
                                       {"v", "Type of V", &Layer::v}};
  static const Fields<QuantPlan> fields = {
      {"layers", "Types of each layer", &QuantPlan::layers, layers}};
  return fields;
}

std::vector<std::string> TypeWords() {
  std::vector<std::string> words;
  for (const quant::CacheType& type : quant::CacheTypes()) words.emplace_back(type.name);
  return words;
}

std::vector<const quant::CacheType*> ParseTypes(const std::vector<std::string>& names,
                                                std::string_view flag) {
  std::vector<const quant::CacheType*> types;
  for (const std::string& name : names) {
    const quant::CacheType* type = &quant::ParseCacheType(name, flag);
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  return types;
}

namespace {

TypePair FindPair(const QuantPlan::Layer& layer, const ReplayRequest& request) {
  const auto at = [](const std::vector<const quant::CacheType*>& types, const std::string& name) {
    const quant::CacheType* type = quant::FindCacheType(name);
    return static_cast<uint32_t>(std::find(types.begin(), types.end(), type) - types.begin());
  };
  return {at(request.store.k_types, layer.k), at(request.store.v_types, layer.v)};
}

}  // namespace

QuantPlan TakePlan(const std::string& path, const Snapshot& snapshot, ReplayRequest& request) {
  QuantPlan plan = ReadQuantPlan(path);
  std::vector<std::string> k = {std::string(request.store.k_types[0]->name)}, v = k;
  for (const QuantPlan::Layer& layer : plan.layers) {
    if (snapshot.Find(layer.layer) == nullptr) {
      throw Error(Finding::kInconsistent, "layer {}: the snapshot has no such layer", layer.layer)
          .File(path);
    }
    k.push_back(layer.k);
    v.push_back(layer.v);
  }
  request.store.k_types = ParseTypes(k, "--plan");
  request.store.v_types = ParseTypes(v, "--plan");
  request.pairs = {{0, 0}};
  for (const QuantPlan::Layer& layer : plan.layers) {
    const TypePair pair = FindPair(layer, request);
    if (std::find(request.pairs.begin(), request.pairs.end(), pair) == request.pairs.end())
      request.pairs.push_back(pair);
  }
  return plan;
}

std::vector<size_t> FindChoice(const QuantPlan& plan, const ReplayRequest& request,
                               const ReplayResult& result) {
  std::vector<size_t> choice(result.layers.size(), 0);
  for (const QuantPlan::Layer& layer : plan.layers) {
    for (size_t l = 0; l < result.layers.size(); ++l) {
      if (result.layers[l].layer != layer.layer) continue;
      const TypePair pair = FindPair(layer, request);
      choice[l] = static_cast<size_t>(std::find(result.pairs.begin(), result.pairs.end(), pair) -
                                      result.pairs.begin());
    }
  }
  return choice;
}

}  // namespace kv
