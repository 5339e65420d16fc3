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
  double original = 8192;    // tokens that the model was trained on before scaling
  // YaRN only. The flag says whether its bounds are rounded to whole pairs.
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double attention = 0;  // factor on cosines and sines; 0: the scaling's default
  // LongRoPE: divisors of each pair's frequency, for runs up to `original` tokens and for longer
  // ones.
  std::vector<double> short_factors = {}, long_factors = {};
  std::vector<double> frequencies = {};  // kGiven: one per pair, instead of the base

  // Returns true if frequencies depend on the length of the run that computed the keys.
  bool by_length() const { return kind == Kind::kDynamic || kind == Kind::kLongRope; }
  bool operator==(const RopeScaling&) const = default;
};

// Rotary embedding of a model's keys.
struct Rope {
  RopePairs pairs = RopePairs::kHalves;
  double theta = 10000;
  uint32_t rotary_dim = 0;  // number of rotated values, from the first on; 0: the whole head
  RopeScaling scaling = {};

  uint32_t CountRotated(uint32_t head_dim) const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  bool operator==(const Rope&) const = default;
};

// Returns the RoPE of layers whose keys are not rotated: every pair has angle 0.
Rope WithoutRotation(uint32_t head_dim);

// The RoPE of a model's layers: windowed layers may have another base than the others.
struct ModelRope {
  ModelRope() = default;
  ModelRope(Rope all) : rope(std::move(all)) {}  // NOLINT: one for all layers is a model's too

  Rope rope = {};                 // rope of all layers that are not listed
  std::vector<Rope> layers = {};  // by the model's layer numbers; empty if all are the same

  const Rope& Of(uint32_t layer) const { return layer < layers.size() ? layers[layer] : rope; }
};

// Parses "neox" or "gptj". Throws kUsage.
RopePairs ParsePairs(std::string_view text);
std::string_view Name(RopePairs pairs);
// Parses "none", "linear:FACTOR", "llama3[:FACTOR,LOW,HIGH,ORIGINAL]",
// "yarn:FACTOR,ORIGINAL[,FAST,SLOW[,ATTENTION]]" or "dynamic:FACTOR,ORIGINAL". Throws kUsage, and
// kUnsupportedKind for M-RoPE, whose tokens have three positions.
RopeScaling ParseScaling(std::string_view text);
std::string Name(const RopeScaling& scaling);
// Throws kUsage unless the rotation fits heads of this size, kInconsistent if a list has another
// number of pairs.
void RequireFit(const Rope& rope, uint32_t head_dim);
// Throws kUnsupportedKind, naming `what`, if keys of a run of `tokens` were rotated by several sets
// of frequencies. Runs up to the original length have one set.
void RequireOneSetOfFrequencies(const Rope& rope, uint64_t tokens, std::string_view what);

// Returns one frequency per pair; scaling is applied in double to the float that models compute.
// `length` is the number of tokens of the run, for scalings that depend on it.
std::vector<double> InverseFrequencies(const Rope& rope, uint32_t head_dim, uint64_t length = 0);
// Returns the factor on cosines and sines, which only a key's first rotation applies.
double AttentionFactor(const RopeScaling& scaling);

// The current and the wanted position of a key, each with the length of its run.
struct KeyShift {
  int64_t from = 0, to = 0;
  uint64_t from_length = 0, to_length = 0;
  bool is_first = false;  // true if the key was not rotated before
};
// Returns the rotations that undo those of keys at these positions of a run of `length` tokens. The
// factor of YaRN and LongRoPE stays applied.
std::vector<KeyShift> ShiftsToZero(std::span<const int64_t> positions, uint64_t length);

// Rotates keys by a number of positions per token, which may be negative. Angles, cosines and sines
// are computed in double; the table has one row per distinct rotation.
class RopeTable {
 public:
  RopeTable(const Rope& rope, uint32_t head_dim, std::span<const KeyShift> shifts);
  // Rotates keys that are already rotated by `positions`, within runs of one length.
  RopeTable(const Rope& rope, uint32_t head_dim, std::span<const int64_t> positions);

  bool rotates_anything() const { return !cosines_.empty(); }
  // Rotates all heads of one token, one after another. Keys that move by 0 keep their bits.
  void Rotate(size_t token, uint32_t heads, float* row) const;

 private:
  static constexpr uint32_t kStays = UINT32_MAX;

  void Add(std::span<const KeyShift> shifts, const Rope& rope);

  RopePairs style_;
  uint32_t head_dim_, pairs_;
  std::vector<uint32_t> row_of_;  // per token
  std::vector<double> cosines_, sines_;
};

// The pairs of values of a head that RoPE rotates together: 2i and 2i + 1 ("neighbours"), or i and
// i + dim/2 ("halves"). A model works with either if the weights of Q and K match, so engines
// differ. This type describes a file, where it may be unknown; lib/core/kernels/rope.h has the two
// known cases.
enum class KeyPairs { kUnknown, kNone, kNeighbours, kHalves };

std::string_view Name(KeyPairs pairs);
// Accepts common synonyms, too: interleaved, gptj, norm; half, neox ...
std::optional<KeyPairs> ParseRopePairs(std::string_view word);

// Key in Snapshot::storage for the order of the keys' pairs, if it is not that of the snapshot's
// engine: the order by name, or the engine that chooses the order by the model (the two words
// below).
inline constexpr const char* kRopePairs = "rope_pairs";
inline constexpr std::string_view kPairsOfLlama = "llama.cpp";
inline constexpr std::string_view kPairsOfTransformers = "transformers";

// The engine whose rule decides the order of pairs if none is recorded by name. Each engine decides
// by model.
enum class PairsOwner { kUnknown, kLlama, kTransformers };
PairsOwner FindPairsOwner(const Snapshot& snapshot);

// Properties of an engine's caches that its files do not state.
struct EngineTraits {
  std::string_view engine;
  PairsOwner pairs = PairsOwner::kTransformers;
  bool runs_exports = false;       // runs transformers models and keeps their order of pairs
  bool may_rotate_blocks = false;  // may store blocks Hadamard-transformed without saying so
};
// Returns the row of this engine; for engines without one, a row without a name.
const EngineTraits& FindTraits(std::string_view engine);

// Returns the word that records the order of the keys in a format whose files name the format's own
// engine; empty if unknown.
std::string PairsToRecord(const Snapshot& snapshot);
// Reads such a word from a file; an empty one records nothing. Throws kBadField for other words.
void TakeRecordedPairs(const std::string& word, Snapshot& snapshot);

// Reorders the values of each head of K for other pairs; uses views if strides can express it.
// Throws kGeometryMissing without heads, kUnsupportedDtype for blocks, kInconsistent for odd heads.
void ReorderKeys(KeyPairs from, KeyPairs to, Snapshot& snapshot);

// Key in Snapshot::storage of the reason why keys are assumed to be rotated although the file does
// not say so. It travels with the keys through archives and array files.
inline constexpr const char* kRotationAssumed = "key_rotation_assumed";

// Marks the keys as rotated (RoPE applied) for a reason that the file does not prove.
inline void AssumeRotated(Snapshot& snapshot, std::string reason) {
  snapshot.key_rotation = KeyRotation::kRotated;
  snapshot.storage[kRotationAssumed] = std::move(reason);
}

// Returns the reason, or an empty text if the file itself tells.
inline std::string RotationAssumption(const Snapshot& snapshot) {
  const auto at = snapshot.storage.find(kRotationAssumed);
  return at == snapshot.storage.end() ? std::string() : at->second;
}

// Serves formats whose readers assume that every key is rotated.
inline void RequireRotatedKeys(const Snapshot& snapshot, std::string_view what) {
  if (snapshot.key_rotation != KeyRotation::kUnrotated) return;
  Error error(Finding::kUnsupportedLayout, "keys are stored unrotated (before RoPE), which " +
                                               std::string(what) + " cannot express");
  throw error.Hint("--to torch-dict or safetensors can");
}

}  // namespace kv
