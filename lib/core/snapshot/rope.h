// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/kernels/rope.h"

namespace kv {

struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongRope, kGiven };
  Kind kind = Kind::kNone;
  double factor = 8;
  double low = 1, high = 4;  // Llama 3 only
  double original = 8192;    // tokens that the model was trained for before it was scaled
  double beta_fast = 32, beta_slow = 1;  // YaRN only, and whether its bounds are whole pairs
  bool truncate = true;
  double attention = 0;  // what cosines and sines are multiplied by; 0: as the scaling has it
  // LongRoPE: divisors of each pair's frequency, in runs up to `original` tokens and in longer
  // ones.
  std::vector<double> short_factors = {}, long_factors = {};
  std::vector<double> frequencies = {};  // kGiven: of each pair, whatever the base

  // Whether frequencies depend on the length of the run that computed the keys.
  bool by_length() const { return kind == Kind::kDynamic || kind == Kind::kLongRope; }
  bool operator==(const RopeScaling&) const = default;
};

// Rotary embedding of a model's keys.
struct Rope {
  RopePairs pairs = RopePairs::kHalves;
  double theta = 10000;
  uint32_t rotary_dim = 0;  // 0: the whole head; else the first values of it
  RopeScaling scaling = {};

  uint32_t DimOf(uint32_t head_dim) const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  bool operator==(const Rope&) const = default;
};

// Of layers whose keys are not rotated, however far apart: no pair of a head turns.
Rope WithoutRotation(uint32_t head_dim);

// The RoPE of a model's layers: windowed layers may have another base than the rest.
struct ModelRope {
  ModelRope() = default;
  ModelRope(Rope all) : rope(std::move(all)) {}  // NOLINT: one for all layers is a model's too

  Rope rope = {};                 // of layers that are not told apart
  std::vector<Rope> layers = {};  // by the model's numbers; empty where all are the same

  const Rope& Of(uint32_t layer) const { return layer < layers.size() ? layers[layer] : rope; }
};

// "neox" or "gptj". Throws kUsage.
RopePairs ParsePairs(std::string_view text);
std::string_view Name(RopePairs pairs);
// "none", "linear:FACTOR", "llama3[:FACTOR,LOW,HIGH,ORIGINAL]",
// "yarn:FACTOR,ORIGINAL[,FAST,SLOW[,ATTENTION]]", "dynamic:FACTOR,ORIGINAL". Throws kUsage, and
// kUnsupportedKind for M-RoPE, whose tokens have three positions.
RopeScaling ParseScaling(std::string_view text);
std::string Name(const RopeScaling& scaling);
// Throws kUsage unless the rotation fits heads of this size, kInconsistent where a list has other
// pairs.
void RequireFit(const Rope& rope, uint32_t head_dim);
// Throws kUnsupportedKind, naming `what`, where keys of a run of `tokens` were not all rotated by
// one set of frequencies. Runs up to the original length have one.
void RequireOneSetOfFrequencies(const Rope& rope, uint64_t tokens, std::string_view what);

// One frequency per pair; scaling is applied in double to the float that models compute. `length`
// is the number of tokens of the run, for scalings that depend on it.
std::vector<double> InverseFrequencies(const Rope& rope, uint32_t head_dim, uint64_t length = 0);
// The factor on cosines and sines when a key is first rotated; later rotations do not repeat it.
double AttentionFactor(const RopeScaling& scaling);

// The present and the wanted rotation of a key, each with the length of its run.
struct KeyTurn {
  int64_t from = 0, to = 0;
  uint64_t from_length = 0, to_length = 0;
  bool is_first = false;  // it was not rotated at all
};
// Turns that undo the rotation of keys at these positions of a run of `length` tokens; the factor
// of YaRN and LongRoPE stays on them.
std::vector<KeyTurn> TurnsBack(std::span<const int64_t> positions, uint64_t length);

// Rotates keys by a number of positions per token, which may be negative. Angles, cosines and sines
// are computed in double; the table has one row per distinct rotation.
class RopeTable {
 public:
  RopeTable(const Rope& rope, uint32_t head_dim, std::span<const KeyTurn> turns);
  // Rotates keys that are already rotated by `positions`, within runs of one length.
  RopeTable(const Rope& rope, uint32_t head_dim, std::span<const int64_t> positions);

  bool turns_anything() const { return !cosines_.empty(); }
  // Rotates all heads of one token, one after another. Keys that move by 0 keep their bits.
  void Rotate(size_t token, uint32_t heads, float* row) const;

 private:
  static constexpr uint32_t kStays = UINT32_MAX;

  void Add(std::span<const KeyTurn> turns, const Rope& rope);

  RopePairs style_;
  uint32_t head_dim_, pairs_;
  std::vector<uint32_t> row_of_;  // of each token
  std::vector<double> cosines_, sines_;
};

}  // namespace kv
