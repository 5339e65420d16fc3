// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <cmath>

#include "formats/model_config/config_json.h"

namespace kv::model_config {
namespace {

using nlohmann::json;
using Kind = RopeScaling::Kind;

constexpr size_t kMostPairs = 1 << 16;

// Models of Hugging Face whose pairs are neighbours; all others turn halves.
constexpr std::string_view kNeighbours[] = {
    "gptj",     "codegen",     "cohere", "cohere2",     "glm",         "glm4",  "chatglm",
    "ernie4_5", "llama4_text", "llama4", "deepseek_v2", "deepseek_v3", "helium"};

std::vector<double> Numbers(const json& object, const char* key) {
  const auto at = object.find(key);
  std::vector<double> numbers;
  if (at == object.end() || !at->is_array() || at->size() > kMostPairs)
    throw Error(Finding::kMissingRecord, fmt::format("rope_scaling has no list {}", key));
  for (const json& number : *at) {
    if (!number.is_number() || !(number.get<double>() > 0))
      throw Error(Finding::kBadField, fmt::format("{} has an entry that is not a number", key));
    numbers.push_back(number.get<double>());
  }
  return numbers;
}

std::string KindOf(const json& told) {
  for (const char* key : {"rope_type", "type"}) {
    const auto at = told.find(key);
    if (at != told.end() && at->is_string()) return at->get<std::string>();
  }
  return "default";
}

double MscaleOf(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

void FillYarn(const json& told, RopeScaling& scaling) {
  scaling.kind = Kind::kYarn;
  scaling.beta_fast = Real(told, "beta_fast").value_or(32);
  scaling.beta_slow = Real(told, "beta_slow").value_or(1);
  const auto truncate = told.find("truncate");
  scaling.truncate = truncate == told.end() || !truncate->is_boolean() || truncate->get<bool>();
  scaling.attention = Real(told, "attention_factor").value_or(0);
  const auto number = [&](const char* key) {
    const auto at = told.find(key);
    return at != told.end() && at->is_number() ? at->get<double>() : 0;
  };
  const double mscale = number("mscale"), all = number("mscale_all_dim");
  if (scaling.attention == 0 && mscale != 0 && all != 0)
    scaling.attention = MscaleOf(scaling.factor, mscale) / MscaleOf(scaling.factor, all);
}

// Pairs of the part that turns count over the whole head; the rest do not turn.
void FillProportional(const Config& config, const Rope& rope, double partial, double factor,
                      RopeScaling& scaling) {
  const uint32_t dim = config.head_dim();
  scaling.kind = Kind::kGiven;
  const auto turned = static_cast<uint32_t>(partial * dim / 2);
  for (uint32_t i = 0; i < dim / 2; ++i) {
    scaling.frequencies.push_back(i < turned ? std::pow(rope.theta, -2.0 * i / dim) / factor : 0.0);
  }
}

// `told`: rope_scaling or rope_parameters. `partial`: the share of a head that turns.
void FillScaling(const Config& config, const json& told, double partial, Rope& rope) {
  RopeScaling& scaling = rope.scaling;
  const std::string kind = KindOf(told);
  if (kind == "mrope" || told.contains("mrope_section")) {
    throw std::move(
        Error(Finding::kUnsupportedKind,
              "the model has M-RoPE: its tokens have three positions, which caches do not keep")
            .Hint("for a prompt of text alone all three are equal: give --rope-base and "
                  "--rope-scaling none instead of the config"));
  }
  scaling.factor = Real(told, "factor").value_or(1);
  const double most = Real(config.text(), "max_position_embeddings").value_or(8192);
  const auto own = Real(told, "original_max_position_embeddings");
  const auto beside = Real(config.text(), "original_max_position_embeddings");
  scaling.original = own ? *own : beside.value_or(most);
  if (kind == "default" || kind == "none") return;
  if (kind == "linear") {
    scaling.kind = Kind::kLinear;
  } else if (kind == "llama3") {
    scaling.kind = Kind::kLlama3;
    scaling.low = Real(told, "low_freq_factor").value_or(1);
    scaling.high = Real(told, "high_freq_factor").value_or(4);
    if (scaling.high <= scaling.low)
      throw Error(Finding::kBadField, "high_freq_factor is not above low_freq_factor");
  } else if (kind == "yarn") {
    FillYarn(told, scaling);
  } else if (kind == "dynamic") {
    scaling.kind = Kind::kDynamic;
  } else if (kind == "longrope" || kind == "su") {
    scaling.kind = Kind::kLongRope;
    scaling.short_factors = Numbers(told, "short_factor");
    scaling.long_factors = Numbers(told, "long_factor");
    if (own || beside) scaling.factor = most / scaling.original;
    scaling.attention = Real(told, "attention_factor").value_or(0);
  } else if (kind == "proportional") {
    FillProportional(config, rope, partial, scaling.factor, scaling);
    rope.rotary_dim = 0;
  } else {
    throw std::move(Error(Finding::kUnsupportedKind,
                          fmt::format("rope_type '{}' is not known", Escaped(kind, 40)))
                        .Hint("--rope-freqs FILE takes the model's own frequencies"));
  }
}

double PartOf(const Config& config, const json& told) {
  const auto own = Real(told, "partial_rotary_factor");
  const auto part = own ? own : Real(config.text(), "partial_rotary_factor");
  const auto former = Real(config.text(), "rotary_pct");
  return part ? *part : former.value_or(1);
}

Rope RopeFrom(const Config& config, const json& told, double theta) {
  Rope rope;
  rope.theta = Real(told, "rope_theta").value_or(theta);
  const std::string model = config.Word("model_type");
  for (const std::string_view name : kNeighbours) {
    if (model == name) rope.pairs = RopePairs::kNeighbours;
  }
  const double partial = PartOf(config, told);
  if (partial > 1) throw Error(Finding::kBadField, "partial_rotary_factor is above 1");
  rope.rotary_dim = static_cast<uint32_t>(config.head_dim() * partial);
  if (const auto dims = config.Count("rotary_dim", 1 << 20); dims && *dims != 0)
    rope.rotary_dim = *dims;
  FillScaling(config, told, partial, rope);
  return rope;
}

const json& ObjectAt(const json& object, const char* key) {
  static const json kNone = json::object();
  const auto at = object.find(key);
  return at != object.end() && at->is_object() ? *at : kNone;
}

}  // namespace

ModelRope RopeOf(const Config& config) {
  const json& text = config.text();
  const json& newer = ObjectAt(text, "rope_parameters");
  const json& told = newer.empty() ? ObjectAt(text, "rope_scaling") : newer;
  const double theta =
      Real(text, "rope_theta").value_or(Real(text, "rotary_emb_base").value_or(10000));
  ModelRope model;
  const json &full = ObjectAt(newer, "full_attention"),
             &windowed = ObjectAt(newer, "sliding_attention");
  const auto local = Real(text, "rope_local_base_freq");
  model.rope = RopeFrom(config, full.empty() ? told : full, theta);
  if (windowed.empty() && !local) return model;
  // Layers with a window have a base of their own and are not scaled.
  const Rope other = windowed.empty() ? RopeFrom(config, json::object(), *local)
                                      : RopeFrom(config, windowed, theta);
  for (const bool sliding : config.Sliding()) model.layers.push_back(sliding ? other : model.rope);
  return model;
}

}  // namespace kv::model_config
