// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string_view>

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Which values of a head RoPE turns together: 2i and 2i + 1 ("neighbours"), or i and i + dim/2
// ("halves"). A model works with either if the weights of Q and K match, so engines differ. What a
// file's keys have, which may be open; lib/kernels/rope.h has the two that can be turned.
enum class KeyPairs { kUnknown, kNone, kNeighbours, kHalves };

std::string_view Name(KeyPairs pairs);
// Also the words in use elsewhere: interleaved, gptj, norm; half, neox ...
std::optional<KeyPairs> ParseRopePairs(std::string_view word);

// The key in Snapshot::storage of the order of the keys' pairs, if it is not that of their engine.
inline constexpr const char* kRopePairs = "rope_pairs";

// Reorders the values of each head of K for other pairs; uses views if strides can express it.
// Throws kGeometryMissing without heads, kUnsupportedDtype for blocks, kInconsistent for odd heads.
void ReorderKeys(KeyPairs from, KeyPairs to, Snapshot& snapshot);

}  // namespace kv
