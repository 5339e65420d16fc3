// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads config.json: geometry, windows and RoPE with its scalings, by the conventions of
// transformers' models.
#include "formats/model_config/model_config.h"

#include <algorithm>
#include <cmath>

#include "formats/format.h"
#include "formats/gguf/gguf.h"
#include "formats/json_fields.h"
#include "formats/npy/npy.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv {
namespace model_config {
namespace {

using nlohmann::json;

constexpr uint64_t kLargestConfig = 16 << 20;
constexpr uint32_t kMostLayers = 4096, kMostHeads = 1 << 16, kWidest = 1 << 20;

}  // namespace

Config::Config(ByteSpan bytes) {
  if (bytes.size() > kLargestConfig) throw Error(Finding::kLimit, "is above 16 MiB");
  // Classifiers list tens of thousands of labels, hence the large limit on keys.
  json whole = ReadJson(AsText(bytes), {.bytes = kLargestConfig, .keys = 1 << 16});
  if (!whole.is_object()) throw Error(Finding::kBadText, "is not a JSON object");
  const auto text = whole.find("text_config");
  text_ = text != whole.end() && text->is_object() ? *text : std::move(whole);
}

std::string Config::Word(const char* key) const { return WordField(text_, key); }

std::optional<uint32_t> Config::Count(const char* key, uint32_t most) const {
  const auto at = text_.find(key);
  if (at == text_.end() || at->is_null()) return std::nullopt;
  if (!at->is_number_unsigned() || at->get<uint64_t>() > most)
    throw Error(Finding::kBadField, "{} is not a number up to {}", key, most);
  return at->get<uint32_t>();
}

uint32_t Config::Need(const char* key, uint32_t most) const {
  const auto count = Count(key, most);
  if (!count || *count == 0)
    throw Error(Finding::kMissingRecord, "has no {}: is it the config of a model?", key);
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
    throw Error(Finding::kBadField, "{} is not a positive number", key);
  return at->get<double>();
}

}  // namespace model_config

bool LooksLikeConfig(ByteSpan bytes) {
  const std::string_view text = AsText(bytes.first(std::min<size_t>(bytes.size(), 64)));
  return Trimmed(text).starts_with('{');
}

ModelGeometry ReadConfigGeometry(const FileSource& file) {
  using namespace model_config;
  const Config config(file.bytes());
  ModelGeometry geometry;
  geometry.source = file.name();
  geometry.architecture = "";  // names of Hugging Face differ from those in states
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

namespace kv::model_config {
namespace {

using nlohmann::json;
using Kind = RopeScaling::Kind;

constexpr size_t kMostPairs = 1 << 16;

// Models of Hugging Face whose pairs are neighbours; all others rotate halves.
constexpr std::string_view kNeighbours[] = {"gptj",        "codegen",      "cohere",      "cohere2",
                                            "cohere2_moe", "glm",          "glm4",        "chatglm",
                                            "ernie4_5",    "ernie4_5_moe", "llama4_text", "llama4",
                                            "helium",      "moonshine",    "blt"};
// Models whose attention has no RoPE; the hybrids among them get order from their recurrent layers.
constexpr std::string_view kWithout[] = {"gpt2",  "gpt_neo",    "gpt_bigcode", "opt",
                                         "bloom", "mpt",        "biogpt",      "xglm",
                                         "jamba", "nemotron_h", "zamba"};
// Models that rotate only layers with a window; the second group only if the model has windows.
constexpr std::string_view kWindowsOnly[] = {"cohere2", "cohere2_moe", "afmoe"};
constexpr std::string_view kWindowsOnlyIfAny[] = {"exaone4", "exaone_moe"};
// Models whose every fourth layer is not rotated, unless the config says otherwise.
constexpr std::string_view kEveryFourthNot[] = {"smollm3", "llama4", "llama4_text"};

std::vector<double> Numbers(const json& object, const char* key) {
  const auto at = object.find(key);
  std::vector<double> numbers;
  if (at == object.end() || !at->is_array() || at->size() > kMostPairs)
    throw Error(Finding::kMissingRecord, "rope_scaling has no list {}", key);
  for (const json& number : *at) {
    if (!number.is_number() || !(number.get<double>() > 0))
      throw Error(Finding::kBadField, "{} has an entry that is not a number", key);
    numbers.push_back(number.get<double>());
  }
  return numbers;
}

std::string ReadRopeKind(const json& told) {
  for (const char* key : {"rope_type", "type"}) {
    const auto at = told.find(key);
    if (at != told.end() && at->is_string()) return at->get<std::string>();
  }
  return "default";
}

double ComputeMscale(double factor, double mscale) {
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
    scaling.attention = ComputeMscale(scaling.factor, mscale) / ComputeMscale(scaling.factor, all);
}

// Scales a partial rotation: frequencies follow from the size of the whole head, and are 0 for
// pairs outside the rotated part.
void FillProportional(const Config& config, const Rope& rope, double partial, double factor,
                      RopeScaling& scaling) {
  const uint32_t dim = config.head_dim();
  scaling.kind = Kind::kGiven;
  const auto rotated = static_cast<uint32_t>(partial * dim / 2);
  for (uint32_t i = 0; i < dim / 2; ++i) {
    scaling.frequencies.push_back(i < rotated ? std::pow(rope.theta, -2.0 * i / dim) / factor
                                              : 0.0);
  }
}

// Reads scaling from `told` (rope_scaling or rope_parameters). `partial` is the share of a head
// that is rotated.
void FillScaling(const Config& config, const json& told, double partial, Rope& rope) {
  RopeScaling& scaling = rope.scaling;
  const std::string kind = ReadRopeKind(told);
  if (kind == "mrope" || told.contains("mrope_section")) {
    throw Error(Finding::kUnsupportedKind,
                "the model has M-RoPE: its tokens have three positions, which caches do not keep")
        .Hint(
            "for a prompt of text alone all three are equal: give --rope-base and --rope-scaling "
            "none instead of the config");
  }
  const auto factor = Real(told, "factor");
  scaling.factor = factor.value_or(1);
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
    if (!factor) scaling.factor = most / scaling.original;
    FillYarn(told, scaling);
  } else if (kind == "dynamic") {
    scaling.kind = Kind::kDynamic;
    scaling.original = most;  // overrides all other values
  } else if (kind == "longrope" || kind == "su") {
    scaling.kind = Kind::kLongRope;
    scaling.short_factors = Numbers(told, "short_factor");
    scaling.long_factors = Numbers(told, "long_factor");
    if (beside) scaling.original = *beside;
    if (beside || !factor) scaling.factor = most / scaling.original;
    scaling.attention = Real(told, "attention_factor").value_or(0);
  } else if (kind == "proportional") {
    FillProportional(config, rope, partial, scaling.factor, scaling);
    rope.rotary_dim = 0;
  } else {
    throw Error(Finding::kUnsupportedKind, "rope_type '{}' is not known", Escaped(kind, 40))
        .Hint("--rope-freqs FILE takes the model's own frequencies");
  }
}

double ReadRotaryPart(const Config& config, const json& told) {
  const auto own = Real(told, "partial_rotary_factor");
  const auto part = own ? own : Real(config.text(), "partial_rotary_factor");
  const auto former = Real(config.text(), "rotary_pct");
  return part ? *part : former.value_or(1);
}

Rope RopeFrom(const Config& config, const json& told, double theta) {
  Rope rope;
  rope.theta = Real(told, "rope_theta").value_or(theta);
  const std::string model = config.Word("model_type");
  if (Contains(kNeighbours, model)) rope.pairs = RopePairs::kNeighbours;
  const double partial = ReadRotaryPart(config, told);
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

bool IsNumber(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number();
}

// Returns the layers whose keys are not rotated at all.
std::vector<bool> UnrotatedLayers(const Config& config) {
  const json& text = config.text();
  const std::string model = config.Word("model_type");
  const std::vector<bool> sliding = config.Sliding();
  const auto alibi = text.find("alibi"), listed = text.find("no_rope_layers");
  if (Contains(kWithout, model) || config.Word("position_embedding_type") == "nope" ||
      (model == "granitemoehybrid" && config.Word("position_embedding_type") != "rope") ||
      (alibi != text.end() && *alibi == true)) {
    return std::vector<bool>(sliding.size(), true);
  }
  std::vector<bool> unrotated(sliding.size(), false);
  if (listed != text.end() && listed->is_array() && !listed->empty()) {  // 0: not rotated
    for (size_t i = 0; i < unrotated.size() && i < listed->size(); ++i)
      unrotated[i] = (*listed)[i] == 0 || (*listed)[i] == false;
  } else if (Contains(kEveryFourthNot, model)) {
    const uint32_t interval = config.Count("no_rope_layer_interval", 1 << 20).value_or(4);
    for (size_t i = 0; i < unrotated.size(); ++i)
      unrotated[i] = interval != 0 && (i + 1) % interval == 0;
  } else if (Contains(kWindowsOnly, model) ||
             (Contains(kWindowsOnlyIfAny, model) && IsNumber(text, "sliding_window"))) {
    for (size_t i = 0; i < unrotated.size(); ++i) unrotated[i] = !sliding[i];
  }
  return unrotated;
}

// Fills in the layers' own rotations; none if all are alike.
void FillLayers(const Config& config, const json& windowed, double theta, ModelRope& model) {
  const json& text = config.text();
  const auto local = Real(text, "rope_local_base_freq");
  const std::vector<bool> unrotated = UnrotatedLayers(config);
  const bool some_not = std::find(unrotated.begin(), unrotated.end(), true) != unrotated.end();
  // Scaling applies only to the layers without a window.
  const bool apart = !windowed.empty() || local || config.Word("model_type") == "olmo3";
  if (!apart && !some_not) return;
  const Rope other = !apart             ? model.rope
                     : windowed.empty() ? RopeFrom(config, json::object(), local.value_or(theta))
                                        : RopeFrom(config, windowed, theta);
  const Rope none = WithoutRotation(config.head_dim());
  for (const bool sliding : config.Sliding()) {
    const bool is_none = unrotated[model.layers.size()];
    model.layers.push_back(is_none ? none : sliding ? other : model.rope);
  }
}

}  // namespace

ModelRope FindRope(const Config& config) {
  const json& text = config.text();
  if (config.Count("kv_lora_rank", 1 << 20).value_or(0) != 0) {
    throw Error(Finding::kUnsupportedKind,
                "the model has latent attention: engines order the rotated and unrotated parts of "
                "its keys differently")
        .Hint("give --kv-heads and --head-dim instead of the config; keys then stay as they are");
  }
  const json& newer = ObjectAt(text, "rope_parameters");
  const json& told = newer.empty() ? ObjectAt(text, "rope_scaling") : newer;
  const double theta =
      Real(text, "rope_theta").value_or(Real(text, "rotary_emb_base").value_or(10000));
  ModelRope model;
  const json &full = ObjectAt(newer, "full_attention"),
             &windowed = ObjectAt(newer, "sliding_attention");
  model.rope = RopeFrom(config, full.empty() ? told : full, theta);
  FillLayers(config, windowed, theta, model);
  return model;
}

}  // namespace kv::model_config

namespace kv {
namespace {

constexpr uint64_t kLargestList = 16 << 20;
constexpr size_t kMostPairs = 1 << 16;

std::vector<double> ParseNumberText(std::string_view text) {
  std::vector<double> numbers;
  constexpr std::string_view kBetween = " \t\r\n,[]";
  for (size_t at = text.find_first_not_of(kBetween); at != text.npos;
       at = text.find_first_not_of(kBetween, at)) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const auto value = ParseNumber<double>(text.substr(at, end - at));
    if (!value || !std::isfinite(*value)) {
      throw Error(Finding::kBadText, "'{}' is not a number",
                  Escaped(text.substr(at, end - at), 40));
    }
    numbers.push_back(*value);
    at = end;
  }
  return numbers;
}

std::vector<double> ReadNumberArray(std::shared_ptr<const FileSource> data) {
  Source source;
  source.files.push_back({data->name(), std::move(data)});
  const TensorFile file = ReadNpy(std::move(source), {});
  const TensorView& view = file.tensors.at(0).view;
  if (view.rank() != 1 || (view.dtype != DType::kF32 && view.dtype != DType::kF64)) {
    throw Error(Finding::kUnsupportedKind, "holds no list of f32 or f64 numbers");
  }
  std::vector<double> numbers(view.elements());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::byte* at = view.data + i * view.strides[0];
    numbers[i] = view.dtype == DType::kF32 ? LoadLE<float>(at) : LoadLE<double>(at);
  }
  return numbers;
}

}  // namespace

std::optional<ModelRope> ReadModelRope(const FileSource& file) {
  try {
    if (LooksLikeConfig(file.bytes()))
      return model_config::FindRope(model_config::Config(file.bytes()));
    return ReadGgufRope(file);
  } catch (Error& error) {
    throw error.File(file.name());
  }
}

std::vector<double> ReadFrequencies(const std::string& path) {
  try {
    const auto file = FileSource::OpenSmall(path, kLargestList, "a list of frequencies");
    const std::string_view text = AsText(file->bytes());
    std::vector<double> numbers =
        text.starts_with("\x93NUMPY") ? ReadNumberArray(file) : ParseNumberText(text);
    if (numbers.empty() || numbers.size() > kMostPairs)
      throw Error(Finding::kBadField, "holds {} frequencies", numbers.size());
    for (const double number : numbers) {
      // 0 rotates nothing; above pi positions cannot be distinguished.
      if (!(number >= 0) || number > 4)
        throw Error(
            Finding::kBadField,
            "{} is not a frequency; expected radians per position, as in a model's inv_freq",
            number);
    }
    return numbers;
  } catch (Error& error) {
    throw error.File(path);
  }
}

}  // namespace kv
