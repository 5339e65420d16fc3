// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string_view>

#include "lib/core/snapshot/rope_pairs.h"

namespace kv {

// The order of values in K's heads for one architecture of llama.cpp: in its own caches, and in
// those of transformers, whose models its converter reads.
struct RopeOrder {
  KeyPairs llama = KeyPairs::kHalves, transformers = KeyPairs::kHalves;
};

// Returns nothing for unlisted architectures; it never guesses.
std::optional<RopeOrder> RopeOrderOf(std::string_view architecture);

}  // namespace kv
