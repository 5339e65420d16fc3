// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lib/core/base/error.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

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
