// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/model_config/config_json.h"

#include <fmt/format.h>

#include "formats/model_config/model_config.h"
#include "lib/core/base/json.h"

namespace kv {
namespace model_config {
namespace {

using nlohmann::json;

constexpr uint64_t kLargestConfig = 16 << 20;
constexpr uint32_t kMostLayers = 4096, kMostHeads = 1 << 16, kWidest = 1 << 20;

}  // namespace

Config::Config(ByteSpan bytes) {
  if (bytes.size() > kLargestConfig) throw Error(Finding::kLimit, "is above 16 MiB");
  // Models that classify name tens of thousands of labels.
  json whole = ReadJson(AsText(bytes), {.bytes = kLargestConfig, .keys = 1 << 16});
  if (!whole.is_object()) throw Error(Finding::kBadText, "is not a JSON object");
  const auto text = whole.find("text_config");
  text_ = text != whole.end() && text->is_object() ? *text : std::move(whole);
}

std::string Config::Word(const char* key) const {
  const auto at = text_.find(key);
  return at != text_.end() && at->is_string() ? at->get<std::string>() : "";
}

std::optional<uint32_t> Config::Count(const char* key, uint32_t most) const {
  const auto at = text_.find(key);
  if (at == text_.end() || at->is_null()) return std::nullopt;
  if (!at->is_number_unsigned() || at->get<uint64_t>() > most)
    throw Error(Finding::kBadField, fmt::format("{} is not a number up to {}", key, most));
  return at->get<uint32_t>();
}

uint32_t Config::Need(const char* key, uint32_t most) const {
  const auto count = Count(key, most);
  if (!count || *count == 0)
    throw Error(Finding::kMissingRecord,
                fmt::format("has no {}: is it the config of a model?", key));
  return *count;
}

uint32_t Config::layers() const { return Need("num_hidden_layers", kMostLayers); }

uint32_t Config::head_dim() const {
  if (const auto told = Count("head_dim", kWidest); told && *told != 0) return *told;
  return Need("hidden_size", kWidest) / Need("num_attention_heads", kMostHeads);
}

std::vector<bool> Config::Sliding() const {
  std::vector<bool> sliding(layers(), false);
  const auto types = text_.find("layer_types");
  if (types != text_.end() && types->is_array()) {
    for (size_t i = 0; i < sliding.size() && i < types->size(); ++i)
      sliding[i] = (*types)[i] == "sliding_attention";
    return sliding;
  }
  const std::string model = Word("model_type");
  const uint32_t usual = model.starts_with("gemma3")              ? 6
                         : model.starts_with("cohere2")           ? 4
                         : model == "exaone4" || model == "olmo3" ? 4
                                                                  : 0;
  const uint32_t period = Count("sliding_window_pattern", kMostLayers).value_or(usual);
  for (size_t i = 0; period > 1 && i < sliding.size(); ++i) sliding[i] = (i + 1) % period != 0;
  return sliding;
}

std::optional<double> Real(const json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) return std::nullopt;
  if (!at->is_number() || !(at->get<double>() > 0) || at->get<double>() > 1e15)
    throw Error(Finding::kBadField, fmt::format("{} is not a positive number", key));
  return at->get<double>();
}

}  // namespace model_config

bool LooksLikeConfig(ByteSpan bytes) {
  const std::string_view text = AsText(bytes.first(std::min<size_t>(bytes.size(), 64)));
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != text.npos && text[first] == '{';
}

ModelGeometry ReadConfigGeometry(const FileSource& file) {
  using namespace model_config;
  const Config config(file.bytes());
  ModelGeometry geometry;
  geometry.source = file.name();
  geometry.architecture = "";  // names of Hugging Face are not those that states carry
  geometry.query_heads = config.Need("num_attention_heads", kMostHeads);
  const uint32_t kv_heads =
      config.Count("num_key_value_heads", kMostHeads).value_or(geometry.query_heads);
  const uint32_t dim = config.head_dim();
  const std::vector<bool> sliding = config.Sliding();
  const auto types = config.text().find("layer_types");
  const bool typed = types != config.text().end() && types->is_array();
  const uint32_t rank = config.Count("kv_lora_rank", kWidest).value_or(0);
  const uint32_t latent =
      rank == 0 ? 0 : rank + config.Count("qk_rope_head_dim", kWidest).value_or(0);
  for (size_t i = 0; i < sliding.size(); ++i) {
    const bool recurrent =
        typed && i < types->size() && ((*types)[i] == "linear_attention" || (*types)[i] == "mamba");
    geometry.layers.push_back({.kv_heads = kv_heads,
                               .k_dim = dim,
                               .v_dim = dim,
                               .has_kv = !recurrent,
                               .sliding = sliding[i],
                               .latent_dim = latent});
  }
  return geometry;
}

}  // namespace kv
