// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by tensor_names.cc, axes.cc

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
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// A name pattern: literal text, {i} = the layer's number, {x} = k, key, keys or v, value, values,
// {01} = 0 for K and 1 for V, * = anything. '/' and '.' are the same character, case is ignored.
struct NameMatch {
  uint32_t layer = 0;
  enum class Part { kKey, kValue, kBoth } part = Part::kBoth;  // kBoth: neither is named
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
  uint32_t patterns = 0;  // bit i is set if pattern i fits the whole name
  // The most trailing parts of the name that a pattern with a layer's number fits: 2 for
  // "past_key_values/key_cache/3". 0 if no pattern fits any, or only the whole name.
  uint32_t parts_below = 0;
  // Returns what must be removed from the matched `name` so that a pattern fits: "past_key_values".
  std::string_view FindPrefix(std::string_view name) const;
};
NameFit FitName(std::string_view name);

// Matches the many names of a file, which differ in little but their numbers, and remembers the
// results.
class PatternMemo {
 public:
  NameFit Of(std::string_view name);
  size_t matched() const { return matched_; }  // number of names on which every pattern was tried

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
  std::string prefix = {};       // the part before the pattern in every name: "past_key_values"
  std::string_view engine = {};  // the engine that writes such names, if there is only one
  Joined joined = Joined::kApart;
  bool lone = false;  // true: the only array of the file, whatever its name
  std::map<uint32_t, Layer> layers;
};

// Finds K and V by --k-pattern/--v-pattern if given, otherwise by the built-in patterns
// (FORMAT.md), otherwise by built-in patterns below one common prefix, otherwise as the only
// tensor. Throws kAmbiguousFormat if two patterns or prefixes find different sets, kDuplicateName,
// kMissingRecord if K and V do not pair, kUnsupportedKind if nothing fits.
KvTensors FindKvTensors(const TensorFile& file, const OpenOptions& options);

// Returns true if a tensor describes tokens rather than K or V: positions, tokens, streams.
bool IsSideTensor(std::string_view name);

// The number of heads and their size, by which an axis that joins both is split; 0: unknown.
struct HeadSizes {
  uint64_t count = 0, dim = 0;
};

// The meaning of an array's axes, outermost first, one letter each: L layer, 2 K then V, B batch, T
// (or S) token, H head, D dim, C channels (heads x dim, not yet divided). Parentheses join roles of
// one axis: "TH(2D)" has K and V side by side in its last axis, "L2(HTD)" all values of a layer's K
// in one.
class Axes {
 public:
  // Parses "bhtd", "[B, H, S, D]" ... Throws kUsage.
  static Axes Parse(std::string_view text);

  size_t rank() const { return axes_.size(); }
  bool Has(char role) const;
  std::string text() const;  // "[batch, head, token, dim]"

  struct Place {
    uint64_t layer = 0, part = 0, batch = 0;
  };
  // Returns one layer's K or V of the array. Throws kInconsistent if the array does not have these
  // axes, kGeometryMissing if a joined one cannot be divided.
  KvTensor View(const TensorView& array, const Place& place, const HeadSizes& heads = {}) const;
  // Returns the extent of a role that has its own axis; 1 if absent.
  uint64_t Extent(const TensorView& array, char role) const;

 private:
  struct Axis {
    uint64_t extent = 1, stride = 0;
  };
  Axis Find(const TensorView& array, char role, const HeadSizes& heads) const;
  std::string_view FindFault() const;  // empty if an array may have these axes

  std::vector<std::string> axes_;  // roles of each axis, outermost first
};

// Returns an example of --layout for an array with this number of axes, for messages.
std::string_view ExampleLayout(size_t rank);

// Decides from the values alone which of the first two axes of [a][b][dim] values of K or V counts
// tokens and which heads. Along tokens, rows of one head resemble each other (the same subspace,
// often the same mean, for keys also a similar phase of RoPE within a few tokens); along heads,
// rows of one token do not.
//
// For each axis let c be the cosine of two rows 1 to 8 apart on it, at the same place of the other,
// and q = mean c^2 + 4 max(0, mean c)^2, each distance weighing the same. The evidence is
// log(q_first / q_second), which does not depend on the scale of the values. For rows without
// structure its variance is 2/n_first + 2/n_second, with n the number of pairs compared; 0.01^2 is
// added, because real values are never quite even. An axis of one row counts as one without
// structure: q = 1/dim.
//
// At most 16384 pairs per axis and 512 dims of a row are sampled, evenly. Rows of zeros (padding)
// and rows with NaN or Inf are left out.
struct TokenAxis {
  double log_ratio = 0;      // above 0: the first of the two axes counts tokens
  double variance = 0;       // its variance if neither axis had structure
  bool is_measured = false;  // false: no rows could be compared

  // Returns the distance between the evidence and a tie, in standard errors.
  double margin() const;
  // Returns 0 or 1, or nothing if the margin is below kDecidingMargin.
  std::optional<int> axis() const;
  // Pools the evidence of tensors that have the same order.
  void Add(const TokenAxis& other);

  // Margin that decides, in standard errors; chosen on five models with windows from 16 tokens up,
  // see the measurement in formats/tensors/FORMAT.md.
  static constexpr double kDecidingMargin = 2.25;
};

// Measures `values`, which has three axes. Values that are not scalar floats are not measured.
TokenAxis FindTokenAxis(const TensorView& values);

}  // namespace kv
