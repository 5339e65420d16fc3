// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/rotl16.h"

#include "lib/core/base/bytes.h"

// These are plain loops, which compilers vectorise.
namespace kv {

void Rotl16(const std::byte* from, size_t words, std::byte* to) noexcept {
  for (size_t i = 0; i < words; ++i) {
    const auto word = LoadLE<uint16_t>(from + 2 * i);
    StoreLE(to + 2 * i, static_cast<uint16_t>(word << 1 | word >> 15));
  }
}

void Rotr16(const std::byte* from, size_t words, std::byte* to) noexcept {
  for (size_t i = 0; i < words; ++i) {
    const auto word = LoadLE<uint16_t>(from + 2 * i);
    StoreLE(to + 2 * i, static_cast<uint16_t>(word >> 1 | word << 15));
  }
}

}  // namespace kv
