// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/gguf/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/gguf/gguf.h"
#include "formats/gguf/metadata.h"

namespace kv {
namespace {

using Kind = RopeScaling::Kind;

double RealOr(const gguf::Metadata& metadata, const std::string& key, double otherwise) {
  const auto value = metadata.Real(key);
  if (value && !(*value > 0)) throw Error(Finding::kBadField, key + " is not positive");
  return value.value_or(otherwise);
}

// Divisors of the frequencies, as llama.cpp's converter stores those of Llama 3 and LongRoPE.
void UseFactors(const gguf::Metadata& metadata, const FileSource& file, Rope& rope) {
  const auto list = [&](const char* name) { return metadata.Floats(name, file.bytes()); };
  const std::vector<double> longer = list("rope_factors_long.weight");
  const std::vector<double> shorter = list("rope_factors_short.weight");
  if (!longer.empty() || !shorter.empty()) {
    throw std::move(
        Error(Finding::kUnsupportedKind,
              fmt::format("the model has LongRoPE: llama.cpp rotates by its long factors where the "
                          "context it was started with is above {} tokens, which no state keeps",
                          rope.scaling.original))
            .Hint("--rope-freqs FILE says which frequencies it rotated by; for caches of "
                  "transformers give the model's config.json"));
  }
  const std::vector<double> factors = list("rope_freqs.weight");
  if (factors.empty()) return;
  for (const double factor : factors) {
    if (!(factor > 0))
      throw Error(Finding::kBadField, "rope_freqs.weight: a factor is not positive");
  }
  Rope plain = rope;
  plain.rotary_dim = static_cast<uint32_t>(2 * factors.size());
  rope.scaling.frequencies = InverseFrequencies(plain, plain.rotary_dim);
  rope.scaling.kind = Kind::kGiven;
  for (size_t i = 0; i < factors.size(); ++i) rope.scaling.frequencies[i] /= factors[i];
}

void UseScaling(const gguf::Metadata& metadata, const std::string& model, Rope& rope) {
  const std::string prefix = model + ".rope.";
  const std::string kind = metadata.Text(prefix + "scaling.type").value_or("none");
  RopeScaling& scaling = rope.scaling;
  scaling.factor = RealOr(metadata, prefix + "scaling.factor", 1);
  for (const std::string& key :
       {model + ".context_length", prefix + "scaling.original_context_length"}) {
    if (const auto original = metadata.Count(key); original && *original != 0)
      scaling.original = *original;
  }
  // The engine multiplies by this, whatever the scaling, and YaRN by its own factor as well.
  const double attention = RealOr(metadata, prefix + "scaling.attn_factor", 1);
  if (attention != 1) scaling.attention = attention;
  if (kind == "linear" && scaling.factor != 1) scaling.kind = Kind::kLinear;
  if (kind == "yarn") {
    scaling.kind = Kind::kYarn;
    scaling.beta_fast = RealOr(metadata, prefix + "scaling.yarn_beta_fast", 32);
    scaling.beta_slow = RealOr(metadata, prefix + "scaling.yarn_beta_slow", 1);
    scaling.attention = attention * (scaling.factor <= 1 ? 1 : 0.1 * std::log(scaling.factor) + 1);
  }
}

// Which layers' keys the engine does not rotate; that is in its graphs, not in the file.
std::vector<bool> UnrotatedLayers(const ModelGeometry& geometry, const gguf::Metadata& metadata) {
  const std::string& name = geometry.architecture;
  std::vector<bool> unrotated(geometry.layers.size(), false);
  const auto is_sliding = [](const ModelGeometry::Layer& layer) { return layer.sliding; };
  const bool windows = std::any_of(geometry.layers.begin(), geometry.layers.end(), is_sliding);
  const bool windows_only = name == "cohere2" || name == "afmoe" || (name == "exaone4" && windows);
  const bool fourth_not = name == "llama4" || name == "smollm3";
  // Granite says by this key whether it rotates at all.
  const bool none = name.starts_with("granite") &&
                    metadata.Count(name + ".rope.scaling.finetuned").value_or(1) == 0;
  for (size_t i = 0; i < unrotated.size(); ++i) {
    unrotated[i] =
        none || (windows_only && !geometry.layers[i].sliding) || (fourth_not && (i + 1) % 4 == 0);
  }
  return unrotated;
}

}  // namespace

std::optional<ModelRope> ReadGgufRope(const FileSource& file) {
  const ModelGeometry geometry = ReadGgufGeometry(file);
  if (geometry.rope_style.empty()) return std::nullopt;
  const gguf::Metadata metadata(file.bytes());
  const std::string prefix = geometry.architecture + ".rope.";
  if (metadata.IsArray(prefix + "dimension_sections")) {
    throw std::move(
        Error(Finding::kUnsupportedKind,
              "the model has M-RoPE: its tokens have three positions, which caches do not keep")
            .Hint("for a prompt of text alone all three are equal: give --rope-base and "
                  "--rope-style instead of the model file"));
  }
  ModelRope model;
  model.rope.theta = geometry.rope_base;
  model.rope.rotary_dim = geometry.rope_dims;
  model.rope.pairs = ParsePairs(geometry.rope_style);
  Rope windowed = model.rope;
  UseScaling(metadata, geometry.architecture, model.rope);
  UseFactors(metadata, file, model.rope);
  const bool gemma3 = geometry.architecture == "gemma3" || geometry.architecture == "gemma3n";
  const auto own = metadata.Real(prefix + "freq_base_swa");
  const bool apart = own || gemma3;
  const std::vector<bool> unrotated = UnrotatedLayers(geometry, metadata);
  if (!apart && std::find(unrotated.begin(), unrotated.end(), true) == unrotated.end())
    return model;
  windowed.theta = RealOr(metadata, prefix + "freq_base_swa", 10000);
  for (const ModelGeometry::Layer& layer : geometry.layers) {
    const bool is_none = unrotated[model.layers.size()];
    model.layers.push_back(is_none                  ? WithoutRotation(layer.k_dim)
                           : apart && layer.sliding ? windowed
                                                    : model.rope);
  }
  return model;
}

}  // namespace kv
