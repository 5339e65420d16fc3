// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

#include "lib/core/base/bytes.h"

namespace kv {

// FNV-1a with 64 bits as the MNN engine computes it. Its offset basis is 1469598103934665603, a
// digit short of the standard 14695981039346656037, so values differ from stock FNV-1a. To hash
// several pieces, pass the hash of the first as the seed of the next.
constexpr uint64_t kFnv1aBasis = 1469598103934665603u;

inline uint64_t Fnv1a64(ByteSpan bytes, uint64_t seed = kFnv1aBasis) {
  uint64_t hash = seed;
  for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
  return hash;
}

}  // namespace kv
