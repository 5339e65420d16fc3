// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Split little-endian words of 2 or 4 bytes into byte planes, and join them again. Plane b holds
// byte b of every word; plane 0 is the least significant one. `words` counts words. The ranges must
// not overlap. Any alignment.
void SplitPlanes2(const std::byte* from, size_t words, std::byte* low, std::byte* high) noexcept;
void JoinPlanes2(const std::byte* low, const std::byte* high, size_t words, std::byte* to) noexcept;
void SplitPlanes4(const std::byte* from, size_t words, std::byte* const planes[4]) noexcept;
void JoinPlanes4(const std::byte* const planes[4], size_t words, std::byte* to) noexcept;

// Rotate the bits of little-endian 16-bit words by one place, left or right. The left rotation
// moves a float's sign from the top of the word to its bottom, so that the upper byte of a bf16 is
// its exponent. `to` may be `from`; any alignment.
void Rotl16(const std::byte* from, size_t words, std::byte* to) noexcept;
void Rotr16(const std::byte* from, size_t words, std::byte* to) noexcept;

}  // namespace kv
