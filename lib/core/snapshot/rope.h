// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/base/error.h"
#include "lib/core/kernels/rope.h"
#include "lib/core/snapshot/snapshot.h"

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

// Which values of a head RoPE turns together: 2i and 2i + 1 ("neighbours"), or i and i + dim/2
// ("halves"). A model works with either if the weights of Q and K match, so engines differ. What a
// file's keys have, which may be open; lib/kernels/rope.h has the two that can be turned.
enum class KeyPairs { kUnknown, kNone, kNeighbours, kHalves };

std::string_view Name(KeyPairs pairs);
// Also the words in use elsewhere: interleaved, gptj, norm; half, neox ...
std::optional<KeyPairs> ParseRopePairs(std::string_view word);

// The key in Snapshot::storage of the order of the keys' pairs, if it is not that of the snapshot's
// engine: an order by name, or the engine that has this order for the model (the two words below).
inline constexpr const char* kRopePairs = "rope_pairs";
inline constexpr std::string_view kPairsOfLlama = "llama.cpp";
inline constexpr std::string_view kPairsOfTransformers = "transformers";

// Whose order the keys have, where none is recorded by name. Each engine decides by the model.
enum class PairsOwner { kUnknown, kLlama, kTransformers };
PairsOwner FindPairsOwner(const Snapshot& snapshot);

// What is true of the caches of an engine where they do not say so themselves.
struct EngineTraits {
  std::string_view engine;
  PairsOwner pairs = PairsOwner::kTransformers;
  bool runs_exports = false;     // of models of transformers, whose order of pairs they keep
  bool may_turn_blocks = false;  // Hadamard-rotates what it quantises, which files need not say
};
// The row of this engine; one without a name for engines that have none.
const EngineTraits& TraitsOf(std::string_view engine);

// The word that a format which names its own engine must record, so that its reader knows what the
// keys have. Empty where that is unknown.
std::string PairsToRecord(const Snapshot& snapshot);
// Takes such a word from a file; empty records nothing. Throws kBadField for other words.
void TakeRecordedPairs(const std::string& word, Snapshot& snapshot);

// Reorders the values of each head of K for other pairs; uses views if strides can express it.
// Throws kGeometryMissing without heads, kUnsupportedDtype for blocks, kInconsistent for odd heads.
void ReorderKeys(KeyPairs from, KeyPairs to, Snapshot& snapshot);

// The key in Snapshot::storage of the reason why keys are assumed to be rotated although the file
// does not say so. It travels with the keys through archives and array files.
inline constexpr const char* kRotationAssumed = "key_rotation_assumed";

// Assumes that the keys are rotated (RoPE applied), for a reason that the file does not prove.
inline void AssumeRotated(Snapshot& snapshot, std::string reason) {
  snapshot.key_rotation = KeyRotation::kRotated;
  snapshot.storage[kRotationAssumed] = std::move(reason);
}

// The reason, or empty if the file itself tells.
inline std::string RotationAssumption(const Snapshot& snapshot) {
  const auto at = snapshot.storage.find(kRotationAssumed);
  return at == snapshot.storage.end() ? std::string() : at->second;
}

// For formats whose readers take every key for rotated.
inline void RequireRotatedKeys(const Snapshot& snapshot, std::string_view what) {
  if (snapshot.key_rotation != KeyRotation::kUnrotated) return;
  Error error(Finding::kUnsupportedLayout,
              "keys are from before RoPE, which " + std::string(what) + " cannot express");
  throw error.Hint("--to torch-dict or safetensors can");
}

}  // namespace kv
