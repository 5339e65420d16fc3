// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Rotate the bits of little-endian 16-bit words by one place, left or right. The left rotation
// moves the sign of a float from the top of the word to its bottom. `to` may be `from`; any
// alignment.
void Rotl16(const std::byte* from, size_t words, std::byte* to) noexcept;
void Rotr16(const std::byte* from, size_t words, std::byte* to) noexcept;

}  // namespace kv
