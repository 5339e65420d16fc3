// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/mlx_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"

namespace kv::mlx {
namespace {

using std::string;
using std::string_view;

constexpr size_t kMostLayers = 1 << 16;
constexpr size_t kMostNumbers = 8;

struct Named {
  string_view name;
  LayerClass kind;
};
constexpr Named kClasses[] = {
    {"KVCache", LayerClass::kPlain},          {"ConcatenateKVCache", LayerClass::kPlain},
    {"RotatingKVCache", LayerClass::kRing},   {"QuantizedKVCache", LayerClass::kQuantised},
    {"ArraysCache", LayerClass::kStateSpace}, {"MambaCache", LayerClass::kStateSpace},
    {"ChunkedKVCache", LayerClass::kChunked}, {"BatchKVCache", LayerClass::kBatch},
    {"CacheList", LayerClass::kOther},        {"BatchRotatingKVCache", LayerClass::kBatchRing},
};

const Named* FindClass(string_view name) {
  for (const Named& known : kClasses) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

// Also of versions to come, and of models that bring their own: whatever they are, their arrays are
// not to be read by names and shapes.
bool IsClassName(string_view name) {
  const auto in_names = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  };
  return FindClass(name) != nullptr ||
         (name.ends_with("Cache") && std::all_of(name.begin(), name.end(), in_names));
}

const string* Find(const TensorFile& file, const string& key) {
  const auto at = file.metadata.find(key);
  return at == file.metadata.end() ? nullptr : &at->second;
}

uint64_t Number(string_view text, const string& where) {
  const auto value = ParseNumber<uint64_t>(text);
  if (!value) {
    throw Error(Finding::kBadField,
                fmt::format("metadata '{}' is '{}', not a count", where, Escaped(text, 40)));
  }
  return *value;
}

// An array of one integer.
uint64_t Scalar(const NamedTensor& tensor) {
  const TensorView& view = tensor.view;
  int64_t value = -1;
  if (view.elements() == 1 && view.dtype == DType::kBool) value = LoadLE<uint8_t>(view.data) != 0;
  if (view.elements() == 1 && view.dtype == DType::kI32) value = LoadLE<int32_t>(view.data);
  if (view.elements() == 1 && view.dtype == DType::kI64) value = LoadLE<int64_t>(view.data);
  if (view.elements() == 1 && view.dtype == DType::kU32) value = LoadLE<uint32_t>(view.data);
  if (value < 0)
    throw Error(Finding::kBadField,
                fmt::format("tensor '{}' is not a count", Escaped(tensor.name)));
  return static_cast<uint64_t>(value);
}

// An array of one integer for each sequence of a batch.
std::vector<int64_t> PerSequence(const ArraysByName& arrays, size_t layer, size_t part) {
  const string name = fmt::format("{}.{}", layer, part);
  const NamedTensor* tensor = arrays.Find(name);
  if (tensor == nullptr) throw Error(Finding::kMissingRecord, fmt::format("has no '{}'", name));
  const TensorView& view = tensor->view;
  if (view.rank() != 1 || (view.dtype != DType::kI32 && view.dtype != DType::kI64))
    throw Error(Finding::kBadField, fmt::format("tensor '{}' is no list of integers", name));
  std::vector<int64_t> values(view.elements());
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* at = view.data + i * view.strides[0];
    values[i] = view.dtype == DType::kI32 ? LoadLE<int32_t>(at) : LoadLE<int64_t>(at);
  }
  return values;
}

// Numbers of a layer: "0.LAYER.j" in the metadata, or arrays "LAYER.j" behind those that `first`
// leaves out.
std::vector<uint64_t> NumbersOf(const TensorFile& file, const ArraysByName& arrays, size_t layer,
                                bool in_metadata, size_t first) {
  std::vector<uint64_t> numbers;
  for (size_t j = 0; j < kMostNumbers; ++j) {
    if (in_metadata) {
      const string key = fmt::format("0.{}.{}", layer, j);
      const string* text = Find(file, key);
      if (text == nullptr) break;
      const bool is_truth = *text == "True" || *text == "False";
      numbers.push_back(is_truth ? *text == "True" : Number(*text, key));
    } else {
      const NamedTensor* tensor = arrays.Find(fmt::format("{}.{}", layer, j + first));
      if (tensor == nullptr) break;
      numbers.push_back(Scalar(*tensor));
    }
  }
  return numbers;
}

}  // namespace

ArraysByName::ArraysByName(const TensorFile& file) {
  for (const NamedTensor& tensor : file.tensors) arrays_.emplace(tensor.name, &tensor);
}

const NamedTensor* ArraysByName::Find(const string& name) const {
  const auto at = arrays_.find(name);
  return at == arrays_.end() ? nullptr : at->second;
}

PromptCache ReadPromptCache(const TensorFile& file) {
  PromptCache cache;
  // Three lists: [metadata, classes, kinds of numbers], formerly [numbers, metadata, classes].
  const string *later = Find(file, "1.0"), *former = Find(file, "2.0");
  const bool is_later = later != nullptr && IsClassName(*later);
  if (!is_later && (former == nullptr || !IsClassName(*former))) return cache;
  cache.in_arrays = is_later;
  const ArraysByName arrays(file);
  const string classes = is_later ? "1." : "2.", user = is_later ? "0." : "1.";
  for (size_t i = 0;; ++i) {
    const string* name = Find(file, classes + std::to_string(i));
    if (name == nullptr) break;
    if (i == kMostLayers) throw Error(Finding::kLimit, fmt::format("{} layers", i));
    const Named* known = FindClass(*name);
    LayerState layer{*name, known == nullptr ? LayerClass::kOther : known->kind, {}};
    if (layer.kind != LayerClass::kOther && layer.kind != LayerClass::kStateSpace)
      layer.numbers = NumbersOf(file, arrays, i, !is_later, layer.is_batch() ? 4 : 2);
    if (layer.is_batch()) {
      layer.offsets = PerSequence(arrays, i, 2);
      layer.paddings = PerSequence(arrays, i, 3);
    }
    cache.layers.push_back(std::move(layer));
  }
  for (const auto& [key, value] : file.metadata) {
    if (key.starts_with(user)) cache.user.emplace_back(key.substr(user.size()), value);
  }
  return cache;
}

}  // namespace kv::mlx
