// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string_view>

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Which values of a head RoPE turns together: 2i and 2i + 1 ("neighbours"), or i and i + dim/2
// ("halves"). A model works with either as long as the weights of Q and K fit, so engines differ.
// What a file's keys have, which may be open; lib/kernels/rope.h has the two that can be turned.
enum class KeyPairs { kUnknown, kNone, kNeighbours, kHalves };

std::string_view Name(KeyPairs pairs);
// Also the words in use elsewhere: interleaved, gptj, norm; half, neox ...
std::optional<KeyPairs> ParseRopePairs(std::string_view word);

// In Snapshot::storage: which pairs the keys have, where they are not those of their engine.
inline constexpr const char* kRopePairs = "rope_pairs";

// Puts the values of each head of K in the order of other pairs; views where strides can say it.
// Throws kGeometryMissing without heads, kUnsupportedDtype for blocks, kInconsistent for odd heads.
void ReorderKeys(KeyPairs from, KeyPairs to, Snapshot& snapshot);

}  // namespace kv
