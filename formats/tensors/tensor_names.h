// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/format.h"
#include "lib/core/base/tensor.h"

namespace kv {

// A name pattern: literal text, {i} = the layer's number, {x} = k, key, keys or v, value, values,
// {01} = 0 for K and 1 for V, * = anything. '/' and '.' are the same character, case is ignored.
struct NameMatch {
  uint32_t layer = 0;
  enum class Part { kKey, kValue, kBoth } part = Part::kBoth;  // kBoth: the name says neither
};
std::optional<NameMatch> MatchName(std::string_view pattern, std::string_view name);

// K and V in one tensor, whose axes follow from its shape, or from a number that the file keeps.
enum class Joined { kApart, kByShape, kByNumber };

// The built-in patterns, in the order of trying.
struct NamePattern {
  std::string_view text;
  std::string_view whose;
  Joined joined = Joined::kApart;
  std::string_view engine = {};
};
std::span<const NamePattern> NamePatterns();

// The built-in patterns that fit one name.
struct NameFit {
  uint32_t patterns = 0;  // bit i: pattern i fits the whole name
  // Number of the last parts of "past_key_values/key_cache/3" that a pattern of layers fits, at
  // most; 0 if none, or if they are the whole name.
  uint32_t parts_below = 0;
  // Returns the part of `name` that must be removed so that a pattern fits: "past_key_values".
  // `name` must be the name that was matched.
  std::string_view PrefixOf(std::string_view name) const;
};
NameFit FitName(std::string_view name);

// Matches the many names of a file, which differ in little but their numbers, and remembers the
// results.
class PatternMemo {
 public:
  NameFit Of(std::string_view name);
  size_t matched() const { return matched_; }  // number of names that every pattern was tried on

 private:
  size_t matched_ = 0;
  std::unordered_map<std::string, NameFit> fits_;
  std::string shape_;
};

// Tried last, if no name fits.
inline constexpr NamePattern kOnlyArray = {
    "the only array",
    "any name; --layout tells its axes, 'l2(htd)' those of TensorRT-LLM's blocks"};

// The tensors of a file that are K and V, by their names.
struct KvTensors {
  struct Layer {
    const NamedTensor* k = nullptr;  // K, or K and V together if they are joined
    const NamedTensor* v = nullptr;
  };
  std::string pattern = {};      // the pattern that fitted: "key_cache.{i}"
  std::string prefix = {};       // the part before it in every name: "past_key_values"
  std::string_view engine = {};  // engine that writes such names, if only one does
  Joined joined = Joined::kApart;
  bool lone = false;  // true: the only array of the file, whatever its name
  std::map<uint32_t, Layer> layers;
};

// Finds K and V by --k-pattern/--v-pattern if given, otherwise by the built-in patterns
// (FORMAT.md), otherwise by these below one common prefix, otherwise as the only tensor. Throws
// kAmbiguousFormat if two patterns or prefixes find different sets, kDuplicateName, kMissingRecord
// if K and V do not pair, kUnsupportedKind if nothing fits.
KvTensors FindKvTensors(const TensorFile& file, const OpenOptions& options);

// Returns true if a tensor describes tokens rather than K or V: positions, tokens, streams.
bool IsSideTensor(std::string_view name);

}  // namespace kv
