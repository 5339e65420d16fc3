// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "formats/tensors/name_patterns.h"
#include "lib/core/base/tensor.h"

namespace kv {

// The last resort if no name fits.
inline constexpr NamePattern kOnlyArray = {
    "the only array",
    "any name; --layout tells its axes, 'l2(htd)' those of TensorRT-LLM's blocks"};

// The tensors of a file that are K and V, by their names.
struct KvTensors {
  struct Layer {
    const NamedTensor* k = nullptr;  // K alone, or K and V in one where they are joined
    const NamedTensor* v = nullptr;
  };
  std::string pattern = {};      // what decided: "key_cache.{i}"
  std::string prefix = {};       // what stands before it in every name: "past_key_values"
  std::string_view engine = {};  // whose names these are, where only one writes them
  Joined joined = Joined::kApart;
  bool lone = false;  // the only array of the file, whatever its name
  std::map<uint32_t, Layer> layers;
};

// By --k-pattern/--v-pattern if given, else by the built-in patterns (FORMAT.md), else by these
// below one common prefix, else the single tensor there is. Throws kAmbiguousFormat when two
// patterns or prefixes find different sets, kDuplicateName, kMissingRecord when K and V do not
// pair, kUnsupportedKind when nothing fits.
KvTensors FindKvTensors(const TensorFile& file, const OpenOptions& options);

// Whether a tensor describes the tokens rather than K or V: positions, tokens, streams.
bool IsSideTensor(std::string_view name);

}  // namespace kv
