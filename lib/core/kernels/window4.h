// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// Stores bf16 values in twelve bits: sign and mantissa in a byte, and the exponent's distance from
// a base in four bits. Runs nearly as fast as copying.
namespace kv {

// The exponents base to base + 14 have the codes 0 to 14. Code 15 is an escape: the exponent is
// listed separately.
constexpr uint32_t kWindow4Exponents = 15;
constexpr uint32_t kMaxWindow4Base = 255 - (kWindow4Exponents - 1);

constexpr size_t Window4NibbleBytes(size_t count) { return (count + 1) / 2; }

// Encodes `count` values to `count` bytes of fields, Window4NibbleBytes(count) bytes of nibbles and
// up to `count` bytes of escaped exponents, whose number it returns. The code of value i is in the
// low half of nibble byte i or, from i = Window4NibbleBytes(count) on, in the high half of byte i -
// Window4NibbleBytes(count). Any alignment.
size_t Window4Encode(const std::byte* values, size_t count, uint32_t base, std::byte* fields,
                     std::byte* nibbles, std::byte* escapes) noexcept;
// Undoes Window4Encode. Returns false if there are fewer or more escapes than the codes require.
bool Window4Decode(const std::byte* fields, const std::byte* nibbles, size_t count, uint32_t base,
                   const std::byte* escapes, size_t escape_count, std::byte* values) noexcept;

namespace ref {
size_t Window4Encode(const std::byte* values, size_t count, uint32_t base, std::byte* fields,
                     std::byte* nibbles, std::byte* escapes) noexcept;
bool Window4Decode(const std::byte* fields, const std::byte* nibbles, size_t count, uint32_t base,
                   const std::byte* escapes, size_t escape_count, std::byte* values) noexcept;
}  // namespace ref

}  // namespace kv
