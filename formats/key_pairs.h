// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/format.h"
#include "lib/core/snapshot/rope.h"

namespace kv {

// Puts the RoPE pairs of K in the order that a format's reader expects: by the architecture that a
// GGUF file or a llama.cpp session names, or by --rope-pairs: "neighbours", "halves", "FROM:TO", or
// "keep". Returns a phrase that says what was done, or nothing. Throws kGeometryMissing, naming the
// flags, if the order matters and is unknown.
std::string FitKeyPairs(PairsWanted wanted, const std::string& flag,
                        const std::optional<ModelGeometry>& geometry, Snapshot& snapshot);

// Returns the current order of the keys' pairs: as the file records it, otherwise the order of its
// engine for the model that the file or `geometry` names. kUnknown if neither is known.
KeyPairs FindKeyPairs(const Snapshot& snapshot, const std::optional<ModelGeometry>& geometry);

// Throws what FitKeyPairs throws does, and kUnsupportedLayout if it would reorder. For outputs
// whose rows must equal those of their source.
void RequireKeyPairs(PairsWanted wanted, const std::optional<ModelGeometry>& geometry,
                     const Snapshot& snapshot);

// The order of values in K's heads for one architecture of llama.cpp: in its own caches, and in
// those of transformers, whose models its converter reads.
struct RopeOrder {
  KeyPairs llama = KeyPairs::kHalves, transformers = KeyPairs::kHalves;
};

// Returns nothing for unlisted architectures; it does not guess.
std::optional<RopeOrder> FindRopeOrder(std::string_view architecture);

}  // namespace kv
