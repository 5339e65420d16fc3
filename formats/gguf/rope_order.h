// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string_view>

#include "lib/core/snapshot/rope_pairs.h"

namespace kv {

// How the heads of K lie for one architecture of llama.cpp's, in its own caches and in those of
// transformers, from which its converter makes the model.
struct RopeOrder {
  KeyPairs llama = KeyPairs::kHalves, transformers = KeyPairs::kHalves;
};

// Nothing for an architecture in no list; those are never guessed.
std::optional<RopeOrder> RopeOrderOf(std::string_view architecture);

}  // namespace kv
