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

// What the built-in patterns make of one name.
struct NameFit {
  uint32_t patterns = 0;  // a bit for each that fits the whole name
  // "past_key_values/key_cache/3": how many of its last parts a pattern of layers fits, at most;
  // 0 if none or if nothing stands before them.
  uint32_t parts_below = 0;
  // What to cut off so that it fits: "past_key_values". `name` is the one that was asked about.
  std::string_view PrefixOf(std::string_view name) const;
};
NameFit FitName(std::string_view name);

// The same for the many names of a file, which differ in little but their numbers.
class PatternMemo {
 public:
  NameFit Of(std::string_view name);
  size_t matched() const { return matched_; }  // names that every pattern was tried on

 private:
  size_t matched_ = 0;
  std::unordered_map<std::string, NameFit> fits_;
  std::string shape_;
};

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
