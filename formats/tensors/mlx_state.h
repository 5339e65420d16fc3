// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/core/base/tensor.h"

namespace kv::mlx {

enum class LayerClass {
  kPlain,
  kChunked,  // one whose beginning is cut off
  kRing,
  kQuantised,
  kBatch,  // of sequences with padding before those that are shorter
  kBatchRing,
  kStateSpace,
  kOther
};

// One layer of a prompt cache, from a file of any version.
struct LayerState {
  std::string class_name;
  LayerClass kind = LayerClass::kOther;
  std::vector<uint64_t> numbers;  // state that is no array, in the order of the class
  // Of each sequence of a batch: the position behind its last token; the padding before its first,
  // negative where a ring has overwritten more than that.
  std::vector<int64_t> offsets = {}, paddings = {};

  bool is_batch() const { return kind == LayerClass::kBatch || kind == LayerClass::kBatchRing; }
};

// The layers by their classes; empty where the metadata name none. Versions before 0.32 keep
// numbers as text in the metadata, later ones as arrays of one element beside K and V.
struct PromptCache {
  std::vector<LayerState> layers;
  bool in_arrays = false;                                 // numbers
  std::vector<std::pair<std::string, std::string>> user;  // metadata of whoever saved it
};
PromptCache ReadPromptCache(const TensorFile& file);

// Arrays by name, for files with very many.
class ArraysByName {
 public:
  explicit ArraysByName(const TensorFile& file);
  const NamedTensor* Find(const std::string& name) const;

 private:
  std::unordered_map<std::string_view, const NamedTensor*> arrays_;
};

}  // namespace kv::mlx
