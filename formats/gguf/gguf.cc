// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads the key-value section of a GGUF file, and derives a model's geometry, windows and RoPE from
// it.
#include "formats/gguf/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/key_pairs.h"
#include "lib/core/base/bytes.h"

namespace kv {

namespace gguf {
namespace {

enum class Type : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxKeys = 1 << 16, kMaxKeyBytes = 1 << 16;
constexpr uint64_t kMaxArrayRead = 1 << 16;  // longer arrays are skipped, not decoded

// Returns the bytes of one value, 0 for types without a fixed size.
uint64_t ValueSize(Type type) {
  constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<size_t>(type)];
}

Type ReadType(ByteReader& in) {
  const uint64_t at = in.offset();
  const uint32_t number = in.U32("value type");
  if (number <= 12) return static_cast<Type>(number);
  throw Error(Finding::kBadField, "value type {}, expected 0 to 12", number).At(at);
}

// Returns the integer at `from`, if the type is an integer's and the value fits.
std::optional<uint32_t> IntegerAt(Type type, const std::byte* from) {
  const bool is_signed =
      type == Type::kI8 || type == Type::kI16 || type == Type::kI32 || type == Type::kI64;
  const uint64_t size = ValueSize(type);
  if (size == 0 || type == Type::kF32 || type == Type::kF64) return std::nullopt;
  uint64_t value = 0;
  std::memcpy(&value, from, size);  // little-endian, as the host is
  const bool is_negative = is_signed && value >> (8 * size - 1) != 0;
  if (is_negative || value > UINT32_MAX) return std::nullopt;
  return static_cast<uint32_t>(value);
}

void CheckVersion(uint32_t version) {
  if (version == 2 || version == 3) return;
  const bool swapped = version != 0 && (version & 0xffff) == 0;
  if (version == 0) throw Error(Finding::kBadVersion, "GGUF version 0 never existed").At(4);
  throw Error(Finding::kUnsupportedVersion,
              swapped ? "a big-endian GGUF file; only little-endian ones are supported"
                      : fmt::format("GGUF version {}; supported: 2 and 3", version))
      .At(4);
}

// The key-value section of one file: views of the values, checked for shape, decoded on request.
class Metadata {
 public:
  explicit Metadata(ByteSpan file) {
    ByteReader in(file);
    const uint32_t magic = in.U32("magic");
    if (magic != kMagic) {
      throw Error(Finding::kBadMagic, "magic {:#010x}, expected {:#x} (GGUF)", magic, kMagic).At(0);
    }
    CheckVersion(in.U32("version"));
    tensors_ = in.U64("tensor count");
    const uint64_t count_at = in.offset();
    const uint64_t count = in.U64("key count");
    if (count > kMaxKeys) {
      throw Error(Finding::kLimit, "{} keys, at most {} are read", count, kMaxKeys).At(count_at);
    }
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = in.offset();
      const uint64_t length = in.U64("key length");
      if (length == 0 || length > kMaxKeyBytes) {
        throw Error(Finding::kBadName, "key of {} bytes, expected 1 to {}", length, kMaxKeyBytes)
            .At(at);
      }
      const std::string_view key = in.Text(length, "key");
      try {
        const Type type = ReadType(in);
        if (!values_.emplace(key, ReadValue(in, type)).second)
          throw Error(Finding::kDuplicateName, "the key occurs twice").At(at);
      } catch (Error& error) {
        throw error.In(Escaped(key, 64));
      }
    }
    tensors_offset_ = in.offset();
  }

  bool IsArray(std::string_view key) const {
    const Value* value = Find(key);
    return value != nullptr && value->is_array;
  }
  // Each getter throws kBadField if the key exists with a type that cannot express the result.
  std::optional<std::string> Text(std::string_view key) const {
    const Value* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_array || value->type != Type::kString)
      throw Error(Finding::kBadField, "expected a string").At(value->offset).In(key);
    return std::string(AsText(value->bytes));
  }
  // Accepts any integer type with a value of 0 to 2^32-1.
  std::optional<uint32_t> Count(std::string_view key) const {
    const std::optional<std::vector<uint32_t>> counts = Counts(key);
    if (!counts) return std::nullopt;
    if (Find(key)->is_array)
      throw Error(Finding::kBadField, "expected one number").At(Find(key)->offset).In(key);
    return counts->front();
  }
  std::optional<double> Real(std::string_view key) const {
    const Value* value = Find(key);
    if (value == nullptr) return std::nullopt;
    std::optional<double> real;
    if (!value->is_array && value->type == Type::kF32) real = LoadLE<float>(value->bytes.data());
    if (!value->is_array && value->type == Type::kF64) real = LoadLE<double>(value->bytes.data());
    if (!real || !std::isfinite(*real))
      throw Error(Finding::kBadField, "expected a number").At(value->offset).In(key);
    return real;
  }
  // Returns one number for all layers, or an array; booleans count as 0 and 1.
  std::optional<std::vector<uint32_t>> Counts(std::string_view key) const {
    const Value* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (value->count > kMaxArrayRead) {
      throw Error(Finding::kLimit, "{} entries, at most {} are read", value->count, kMaxArrayRead)
          .At(value->offset)
          .In(key);
    }
    std::vector<uint32_t> counts;
    for (uint64_t i = 0; i < value->count; ++i) {
      const auto number =
          ValueSize(value->type) == 0
              ? std::nullopt
              : IntegerAt(value->type, value->bytes.data() + i * ValueSize(value->type));
      if (!number) {
        throw Error(Finding::kBadField, "expected whole numbers that fit 32 bits")
            .At(value->offset)
            .In(key);
      }
      counts.push_back(*number);
    }
    return counts;
  }
  // Returns the values of a small f32 tensor after the keys; empty if there is none, as in files
  // cut after their keys. Throws kBadField or kTruncated if the tensor exists but is broken.
  std::vector<double> Floats(std::string_view tensor, ByteSpan file) const {
    constexpr uint32_t kMostDims = 4, kFloat = 0;
    constexpr uint64_t kMostValues = 1 << 16;
    ByteReader in(file.subspan(tensors_offset_), tensors_offset_);
    uint64_t count = 0, offset = 0;
    uint32_t type = 0;
    bool found = false;
    for (uint64_t i = 0; i < tensors_; ++i) {
      if (in.at_end()) return {};
      const std::string_view name = in.Text(in.U64("name length"), "name");
      const uint64_t at = in.offset();
      const uint32_t dims = in.U32("dims");
      if (dims > kMostDims) throw Error(Finding::kBadField, "a tensor with {} dims", dims).At(at);
      uint64_t values = 1;
      for (uint32_t d = 0; d < dims; ++d) {
        if (__builtin_mul_overflow(values, in.U64("extent"), &values))
          throw Error(Finding::kOverflow, "extents of a tensor overflow 64 bits").At(at);
      }
      const uint32_t its_type = in.U32("type");
      const uint64_t its_offset = in.U64("offset");
      if (name != tensor) continue;
      found = true;
      count = values;
      type = its_type;
      offset = its_offset;
    }
    if (!found) return {};
    const uint64_t align = std::max(Count("general.alignment").value_or(32), 1u);
    const uint64_t base = (in.offset() + align - 1) / align * align;
    if (type != kFloat || count == 0 || count > kMostValues)
      throw Error(Finding::kBadField, "is not a short list of f32 values").In(tensor);
    if (base > file.size() || offset > file.size() - base)
      throw Error(Finding::kTruncated, "the file ends before the tensor does").In(tensor);
    ByteReader data(file.subspan(base + offset), base + offset);
    std::vector<double> numbers;
    for (uint64_t i = 0; i < count; ++i) numbers.push_back(data.F32("value"));
    return numbers;
  }

 private:
  struct Value {
    Type type;
    bool is_array = false;
    uint64_t count = 1;
    ByteSpan bytes;  // the text, if the value is one string
    uint64_t offset = 0;
  };

  const Metadata::Value* Find(std::string_view key) const {
    const auto at = values_.find(key);
    return at == values_.end() ? nullptr : &at->second;
  }
  Value ReadValue(ByteReader& in, Type type) const {
    Value value{.type = type, .bytes = {}, .offset = in.offset()};
    if (type == Type::kArray) {
      value.is_array = true;
      value.type = ReadType(in);
      value.count = in.U64("array length");
      if (value.type == Type::kArray) {
        throw Error(Finding::kBadField, "an array of arrays").At(value.offset);
      }
    }
    if (const uint64_t size = ValueSize(value.type); size != 0) {
      value.bytes = in.TakeArray(value.count, size, "value");
      return value;
    }
    // each string has a length field, so fail before walking
    if (value.count > in.remaining() / 8) {
      throw Error(Finding::kTruncated, "{} strings need more than the {} bytes left", value.count,
                  in.remaining())
          .At(value.offset);
    }
    for (uint64_t i = 0; i < value.count; ++i)
      value.bytes = in.Take(in.U64("string length"), "string");
    return value;
  }

  std::map<std::string_view, Value, std::less<>> values_;
  uint64_t tensors_ = 0, tensors_offset_ = 0;  // number of tensors, and their offset
};

constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxHeads = 1 << 16, kMaxDim = 1 << 20;

// Windows of an architecture whose files do not list them: layer i has a window unless it is the
// last of its period (the first, if dense_first).
struct WindowPattern {
  std::string_view architecture;
  uint32_t period;
  bool dense_first = false;
};
constexpr WindowPattern kPatterns[] = {
    {"gemma2", 2},  {"gemma3", 6},  {"gemma3n", 5}, {"cohere2", 4}, {"llama4", 4},
    {"gpt-oss", 2}, {"exaone4", 4}, {"olmo2", 4},   {"afmoe", 4},   {"smallthinker", 4, true},
};

// The keys of one model: "{architecture}.name".
class Keys {
 public:
  Keys(const Metadata& metadata, std::string_view architecture)
      : metadata_(metadata), prefix_(fmt::format("{}.", architecture)) {}

  std::optional<uint32_t> Count(std::string_view name, uint32_t limit) const {
    const std::optional<uint32_t> count = metadata_.Count(Key(name));
    if (count) CheckLimit(name, *count, limit);
    return count;
  }
  uint32_t Need(std::string_view name, uint32_t limit) const {
    const std::optional<uint32_t> count = Count(name, limit);
    if (count && *count > 0) return *count;
    throw Error(count ? Finding::kBadField : Finding::kMissingRecord,
                fmt::format("{}{} is {}", prefix_, name, count ? "0" : "missing"));
  }
  // Returns one number for each layer, from a number or an array; empty if the key is missing.
  std::vector<uint32_t> PerLayer(std::string_view name, uint32_t layers, uint32_t limit) const {
    const std::string key = Key(name);
    std::optional<std::vector<uint32_t>> counts = metadata_.Counts(key);
    if (!counts) return {};
    for (uint32_t count : *counts) CheckLimit(name, count, limit);
    if (!metadata_.IsArray(key)) return std::vector<uint32_t>(layers, counts->front());
    if (counts->size() == layers) return *std::move(counts);
    throw Error(Finding::kInconsistent, "{} has {} entries, block_count is {}", key, counts->size(),
                layers);
  }
  std::optional<double> Real(std::string_view name) const { return metadata_.Real(Key(name)); }
  bool IsArray(std::string_view name) const { return metadata_.IsArray(Key(name)); }

 private:
  std::string Key(std::string_view name) const {
    std::string key = prefix_;
    key += name;
    return key;
  }
  void CheckLimit(std::string_view name, uint32_t count, uint32_t limit) const {
    if (count <= limit) return;
    throw Error(Finding::kLimit, "{}{} is {}, at most {} is read", prefix_, name, count, limit);
  }

  const Metadata& metadata_;
  std::string prefix_;
};

// Returns for each layer whether it has a sliding window.
std::vector<bool> SlidingLayers(const Keys& keys, std::string_view architecture, uint32_t layers) {
  std::vector<bool> sliding(layers, false);
  const std::string_view pattern_key = "attention.sliding_window_pattern";
  const std::optional<uint32_t> window = keys.Count("attention.sliding_window", UINT32_MAX);
  const bool has_window = window ? *window > 0 : architecture == "llama4";
  if (!has_window) return sliding;
  const std::vector<uint32_t> given = keys.PerLayer(pattern_key, layers, UINT32_MAX);
  if (!given.empty() && keys.IsArray(pattern_key)) {
    std::transform(given.begin(), given.end(), sliding.begin(), [](uint32_t v) { return v != 0; });
    return sliding;
  }
  const auto known =
      std::find_if(std::begin(kPatterns), std::end(kPatterns),
                   [&](const WindowPattern& p) { return p.architecture == architecture; });
  if (known == std::end(kPatterns) && given.empty()) return sliding;
  const uint32_t period = given.empty() ? known->period : given[0];
  const bool dense_first = known != std::end(kPatterns) && known->dense_first;
  for (uint32_t i = 0; i < layers; ++i) {
    const uint32_t dense = dense_first ? 0 : period - 1;
    sliding[i] = period == 0 || i % period != dense;
  }
  return sliding;
}

// Returns n if only every n-th layer has a KV cache; the others are recurrent (Qwen3-Next and
// similar models).
uint32_t FullAttentionInterval(const Keys& keys, std::string_view architecture) {
  const bool hybrid =
      architecture == "qwen3next" || architecture == "qwen35" || architecture == "qwen35moe";
  const auto told = keys.Count("full_attention_interval", kMaxLayers);
  return std::max(told.value_or(hybrid ? 4 : 1), 1u);
}

std::vector<ModelGeometry::Layer> ReadLayers(const Keys& keys, std::string_view architecture,
                                             uint32_t count, const std::vector<uint32_t>& heads) {
  std::vector<uint32_t> kv_heads = keys.PerLayer("attention.head_count_kv", count, kMaxHeads);
  if (kv_heads.empty()) kv_heads = heads;
  const uint32_t most_heads = *std::max_element(heads.begin(), heads.end());
  const uint32_t shared = keys.Count("attention.shared_kv_layers", count).value_or(0);
  const uint32_t width = keys.Count("embedding_length", kMaxDim).value_or(0);
  const uint32_t fallback = most_heads == 0 ? 0 : width / most_heads;
  const auto dim = [&](const char* name, uint32_t otherwise) {
    return keys.Count(name, kMaxDim).value_or(otherwise);
  };
  const uint32_t k_dim = dim("attention.key_length", fallback);
  const uint32_t v_dim = dim("attention.value_length", fallback);
  const uint32_t k_swa = dim("attention.key_length_swa", k_dim);
  const uint32_t v_swa = dim("attention.value_length_swa", v_dim);
  const uint32_t rank = dim("attention.kv_lora_rank", 0);
  const uint32_t latent = rank == 0 ? 0 : rank + dim("rope.dimension_count", 0);
  const std::vector<bool> sliding = SlidingLayers(keys, architecture, count);
  // For such hybrids the file gives the interval of attention layers instead of the heads of each
  // layer.
  const uint32_t interval = FullAttentionInterval(keys, architecture);
  std::vector<ModelGeometry::Layer> layers;
  for (uint32_t i = 0; i < count; ++i) {
    layers.push_back({.kv_heads = kv_heads[i],
                      .k_dim = sliding[i] ? k_swa : k_dim,
                      .v_dim = sliding[i] ? v_swa : v_dim,
                      .has_kv = kv_heads[i] != 0 && i < count - shared && (i + 1) % interval == 0,
                      .sliding = sliding[i],
                      .latent_dim = latent});
  }
  return layers;
}

}  // namespace
}  // namespace gguf

ModelGeometry ReadGgufGeometry(const FileSource& file) {
  const gguf::Metadata metadata(file.bytes());
  const std::optional<std::string> architecture = metadata.Text("general.architecture");
  if (!architecture || architecture->empty() || architecture->size() > 64)
    throw Error(Finding::kMissingRecord, "general.architecture is missing or is not a name");
  const gguf::Keys keys(metadata, *architecture);
  const uint32_t count = keys.Need("block_count", gguf::kMaxLayers);
  const std::vector<uint32_t> heads = keys.PerLayer("attention.head_count", count, gguf::kMaxHeads);
  if (heads.empty()) {
    throw Error(Finding::kMissingRecord, "{}.attention.head_count is missing",
                Escaped(*architecture));
  }
  ModelGeometry geometry;
  geometry.source = file.name();
  geometry.architecture = *architecture;
  geometry.layers = gguf::ReadLayers(keys, *architecture, count, heads);
  const auto first = std::find_if(geometry.layers.begin(), geometry.layers.end(),
                                  [](const ModelGeometry::Layer& layer) { return layer.has_kv; });
  if (first == geometry.layers.end()) {
    throw Error(Finding::kUnsupportedKind, "no layer of this {} model has a KV cache",
                Escaped(*architecture));
  }
  geometry.query_heads = heads[static_cast<size_t>(first - geometry.layers.begin())];
  if (const std::optional<RopeOrder> order = FindRopeOrder(*architecture)) {
    if (order->llama == KeyPairs::kNeighbours) geometry.rope_style = "gptj";
    if (order->llama == KeyPairs::kHalves) geometry.rope_style = "neox";
  }
  if (!geometry.rope_style.empty()) {
    geometry.rope_base = keys.Real("rope.freq_base").value_or(10000.0);
    geometry.rope_dims = keys.Count("rope.dimension_count", gguf::kMaxDim).value_or(first->k_dim);
  }
  return geometry;
}

namespace {

using Kind = RopeScaling::Kind;

double RealOr(const gguf::Metadata& metadata, const std::string& key, double otherwise) {
  const auto value = metadata.Real(key);
  if (value && !(*value > 0)) throw Error(Finding::kBadField, key + " is not positive");
  return value.value_or(otherwise);
}

// Reads divisors of the frequencies, which llama.cpp's converter stores for Llama 3 and LongRoPE.
void UseFactors(const gguf::Metadata& metadata, const FileSource& file, Rope& rope) {
  const auto list = [&](const char* name) { return metadata.Floats(name, file.bytes()); };
  const std::vector<double> longer = list("rope_factors_long.weight");
  const std::vector<double> shorter = list("rope_factors_short.weight");
  if (!longer.empty() || !shorter.empty()) {
    throw Error(Finding::kUnsupportedKind,
                "the model has LongRoPE: llama.cpp rotates by its long factors if its context is "
                "above {} tokens, and no state records the context",
                rope.scaling.original)
        .Hint(
            "--rope-freqs FILE gives the frequencies that it used; for caches "
            "of transformers give the model's config.json");
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
  // llama.cpp multiplies by attn_factor for every kind of scaling; for YaRN it also applies YaRN's
  // factor.
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

// Returns the layers whose keys llama.cpp does not rotate. Its graphs determine that, not the file.
std::vector<bool> UnrotatedLayers(const ModelGeometry& geometry, const gguf::Metadata& metadata) {
  const std::string& name = geometry.architecture;
  std::vector<bool> unrotated(geometry.layers.size(), false);
  const auto is_sliding = [](const ModelGeometry::Layer& layer) { return layer.sliding; };
  const bool windows = std::any_of(geometry.layers.begin(), geometry.layers.end(), is_sliding);
  const bool windows_only = name == "cohere2" || name == "afmoe" || (name == "exaone4" && windows);
  const bool fourth_not = name == "llama4" || name == "smollm3";
  // For Granite, the key "finetuned" tells whether K is rotated at all.
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
    throw Error(Finding::kUnsupportedKind,
                "the model has M-RoPE: its tokens have three positions, which caches do not keep")
        .Hint(
            "for a prompt of text alone all three are equal: give --rope-base and "
            "--rope-style instead of the model file");
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
