// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/run/sensitivity.h"

#include <fmt/format.h>

#include "formats/run/json_fields.h"
#include "lib/core/base/error.h"

namespace kv {
namespace {

constexpr uint64_t kMostLayerNumber = 65535;
constexpr double kLeastNoise = 1e-6, kMostNoise = 1e3, kMostNats = 1e6;

Sensitivity SensitivityOf(const nlohmann::json& document) {
  Sensitivity made;
  made.model = run::TextField(document, "model");
  const auto noise = run::RealField(document, "noise", kLeastNoise, kMostNoise);
  if (!noise) throw Error(Finding::kBadField, "'noise' is missing");
  made.noise = *noise;
  const auto layers = document.find("layers");
  if (layers == document.end() || !layers->is_array() || layers->empty()) {
    throw Error(Finding::kBadField, "'layers' is no list of layers");
  }
  for (const nlohmann::json& layer : *layers) {
    if (!layer.is_object()) throw Error(Finding::kBadField, "an entry of 'layers' is no object");
    const auto number = run::CountField(layer, "layer", kMostLayerNumber);
    const auto kl = run::RealField(layer, "kl", 0, kMostNats);
    if (!number || !kl) {
      throw Error(Finding::kBadField, "an entry of 'layers' has no 'layer' or no 'kl'");
    }
    if (!made.kl.emplace(static_cast<uint32_t>(*number), *kl).second) {
      throw Error(Finding::kDuplicateName, fmt::format("a second entry for layer {}", *number));
    }
  }
  return made;
}

}  // namespace

std::map<uint32_t, double> Sensitivity::Weights() const {
  std::map<uint32_t, double> weights = kl;
  for (auto& [layer, weight] : weights) weight /= noise * noise;
  return weights;
}

Sensitivity ReadSensitivity(const FileSource& file) {
  const nlohmann::json document = run::ReadDocument(file, "kvtool.sensitivity/1");
  try {
    return SensitivityOf(document);
  } catch (Error& error) {
    throw error.File(file.name());
  }
}

Sensitivity ReadSensitivity(const std::string& path) {
  return ReadSensitivity(*FileSource::OpenSmall(path, run::kLargestDocument, "a sensitivity.json"));
}

}  // namespace kv
