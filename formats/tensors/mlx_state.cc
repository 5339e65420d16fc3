// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads the state of each class of mlx-lm's caches from metadata or arrays, in all versions.
#include <fmt/format.h>

#include <algorithm>

#include "formats/tensors/kvtool_arrays.h"
#include "formats/tensors/mlx.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
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

// Returns true for names of classes, including those of later versions and of models that bring
// their own: their arrays must not be read by names and shapes.
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
    throw Error(Finding::kBadField, "metadata '{}' is '{}', not a count", where, Escaped(text, 40));
  }
  return *value;
}

// Reads an array of one integer.
uint64_t Scalar(const NamedTensor& tensor) {
  const TensorView& view = tensor.view;
  int64_t value = -1;
  if (view.elements() == 1 && view.dtype == DType::kBool) value = LoadLE<uint8_t>(view.data) != 0;
  if (view.elements() == 1 && view.dtype == DType::kI32) value = LoadLE<int32_t>(view.data);
  if (view.elements() == 1 && view.dtype == DType::kI64) value = LoadLE<int64_t>(view.data);
  if (view.elements() == 1 && view.dtype == DType::kU32) value = LoadLE<uint32_t>(view.data);
  if (value < 0)
    throw Error(Finding::kBadField, "tensor '{}' is not a count", Escaped(tensor.name));
  return static_cast<uint64_t>(value);
}

// Reads an array with one integer for each sequence of a batch.
std::vector<int64_t> PerSequence(const ArraysByName& arrays, size_t layer, size_t part) {
  const string name = fmt::format("{}.{}", layer, part);
  const NamedTensor* tensor = arrays.Find(name);
  if (tensor == nullptr) throw Error(Finding::kMissingRecord, "has no '{}'", name);
  const TensorView& view = tensor->view;
  if (view.rank() != 1 || (view.dtype != DType::kI32 && view.dtype != DType::kI64))
    throw Error(Finding::kBadField, "tensor '{}' is not a list of integers", name);
  return ToIntegers(view);
}

// Reads the numbers of a layer: "0.LAYER.j" in the metadata, or arrays "LAYER.j" after the first
// `first` ones.
std::vector<uint64_t> ReadLayerNumbers(const TensorFile& file, const ArraysByName& arrays,
                                       size_t layer, bool in_metadata, size_t first) {
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
  // The metadata have three lists: [metadata, classes, kinds of numbers], formerly [numbers,
  // metadata, classes].
  const string *later = Find(file, "1.0"), *former = Find(file, "2.0");
  const bool is_later = later != nullptr && IsClassName(*later);
  if (!is_later && (former == nullptr || !IsClassName(*former))) return cache;
  cache.in_arrays = is_later;
  const ArraysByName arrays(file);
  const string classes = is_later ? "1." : "2.", user = is_later ? "0." : "1.";
  for (size_t i = 0;; ++i) {
    const string* name = Find(file, classes + std::to_string(i));
    if (name == nullptr) break;
    if (i == kMostLayers) throw Error(Finding::kLimit, "{} layers", i);
    const Named* known = FindClass(*name);
    LayerState layer{*name, known == nullptr ? LayerClass::kOther : known->kind, {}};
    if (layer.kind != LayerClass::kOther && layer.kind != LayerClass::kStateSpace)
      layer.numbers = ReadLayerNumbers(file, arrays, i, !is_later, layer.is_batch() ? 4 : 2);
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

namespace {

Used FindUsedInPlain(const LayerState& layer, uint64_t room) {
  const uint64_t offset = layer.numbers.empty() ? room : layer.numbers[0];
  if (offset > room) throw Bad("offset {}, but room for {} tokens", offset, room);
  return {{{0, offset}}, offset, offset, offset};
}

// Tokens before the start were cut off. Earlier versions do not record how much of the rest is
// used; it is known only for a cache from which nothing was cut.
Used FindUsedInChunked(const LayerState& layer, uint64_t room, bool in_arrays) {
  const auto& n = layer.numbers;
  if (n.size() != (in_arrays ? 3 : 2))
    throw Bad("a chunk needs {} numbers, not {}", in_arrays ? 3 : 2, n.size());
  const uint64_t start = n[in_arrays ? 2 : 1];
  if (!in_arrays && start != 0) {
    throw Error(Finding::kUnsupportedKind,
                "starts at position {}, and its version of mlx-lm does not save where it ends",
                start)
        .Hint("save it again with mlx-lm 0.32 or later, or archive the file with --from opaque");
  }
  const uint64_t offset = in_arrays ? n[0] : room;
  if (start > offset || offset - start > room)
    throw Bad("start {} and offset {}, but room for {} tokens", start, offset, room);
  return {{{0, offset - start}}, offset - start, 0, offset};
}

// The numbers of a ring buffer. Their order differs between versions of mlx-lm.
struct Ring {
  uint64_t offset, keep, most, index;
};

Ring ReadRing(const LayerState& layer, bool in_arrays) {
  const auto& n = layer.numbers;
  if (in_arrays && n.size() == 4) return {n[0], n[1], n[2], n[3]};
  if (!in_arrays && n.size() == 4) return {n[2], n[0], n[1], n[3]};
  if (!in_arrays && n.size() == 5) return {n[3], n[0], n[1], n[4]};
  throw Bad("a ring needs 4 or 5 numbers, not {}", n.size());
}

void CheckPlace(uint64_t index, uint64_t room) {
  if (index > room) throw Bad("the ring's next place is {} of {}", index, room);
}

Used FindUsedInRing(const Ring& ring, uint64_t room) {
  CheckPlace(ring.index, room);
  Used used{{}, room, 0, ring.offset};
  if (ring.index == room) {
    used.runs = {{0, room}};
  } else if (ring.index >= ring.offset) {
    used.runs = {{0, ring.index}};
    used.tokens = ring.index;
  } else {
    if (ring.keep > ring.index)
      throw Bad("the ring's next place {} is among the {} kept tokens", ring.index, ring.keep);
    used.runs = {{0, ring.keep}, {ring.index, room}, {ring.keep, ring.index}};
  }
  if (used.tokens > ring.offset) throw Bad("has {} tokens, processed {}", used.tokens, ring.offset);
  used.kept = used.tokens == ring.offset ? used.tokens : std::min(ring.keep, used.tokens);
  return used;
}

// Removes a row's padding, which precedes its tokens unless a ring has overwritten it.
Used WithoutPadding(std::vector<Used::Run> runs, uint64_t padding, uint64_t offset) {
  Used used{{}, 0, 0, offset};
  for (Used::Run run : runs) {
    const uint64_t cut = std::min(padding, run.end - run.begin);
    padding -= cut;
    run.begin += cut;
    used.tokens += run.end - run.begin;
    used.runs.push_back(run);
  }
  if (padding > 0) throw Bad("a row has more padding than tokens");
  if (used.tokens > offset) throw Bad("a row has {} tokens, but processed {}", used.tokens, offset);
  return used;
}

Used FindUsedInBatch(const LayerState& layer, uint64_t room, std::optional<uint64_t> row) {
  const auto& n = layer.numbers;
  std::vector<Used::Run> runs;
  if (layer.kind == LayerClass::kBatchRing) {
    if (n.size() != 4) throw Bad("a ring of a batch needs 4 numbers, not {}", n.size());
    const uint64_t index = n[2];
    CheckPlace(index, room);
    runs = n[3] != 0 ? std::vector<Used::Run>{{index, room}, {0, index}}
                     : std::vector<Used::Run>{{0, index}};
  } else {
    const uint64_t index = n.empty() ? room : n[0];
    if (index > room) throw Bad("{} tokens, but room for {}", index, room);
    runs = {{0, index}};
  }
  if (!row) {
    uint64_t tokens = 0;
    for (const Used::Run& run : runs) tokens += run.end - run.begin;
    return {std::move(runs), tokens, tokens, tokens};
  }
  const int64_t offset = layer.offsets.at(*row), padding = layer.paddings.at(*row);
  if (offset < 0) throw Bad("row {} ends at {}", *row, offset);
  Used used = WithoutPadding(std::move(runs), static_cast<uint64_t>(std::max<int64_t>(padding, 0)),
                             static_cast<uint64_t>(offset));
  if (layer.kind == LayerClass::kBatch && used.tokens != used.offset)
    throw Bad("row {} holds {} tokens and ends at {}", *row, used.tokens, offset);
  return used;
}

}  // namespace

Used FindUsedRows(const LayerState& layer, uint64_t room, bool in_arrays,
                  std::optional<uint64_t> row) {
  switch (layer.kind) {
    case LayerClass::kRing:
      return FindUsedInRing(ReadRing(layer, in_arrays), room);
    case LayerClass::kChunked:
      return FindUsedInChunked(layer, room, in_arrays);
    case LayerClass::kBatch:
    case LayerClass::kBatchRing:
      return FindUsedInBatch(layer, room, row);
    default:
      return FindUsedInPlain(layer, room);
  }
}

}  // namespace kv::mlx
