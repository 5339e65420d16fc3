// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// bf16 in twelve bits: sign and mantissa as a byte, the exponent as four bits counted from a base.
// Near the speed of copying.
namespace kv {

// Fifteen exponents have a number; 15 announces one that is listed apart.
constexpr uint32_t kWindow4Exponents = 15;
constexpr uint32_t kMaxWindow4Base = 255 - (kWindow4Exponents - 1);

constexpr size_t Window4NibbleBytes(size_t count) { return (count + 1) / 2; }

// `fields` takes count bytes, `nibbles` Window4NibbleBytes(count): value i in the low half of byte
// i, or, from the middle on, in the high half of byte i - Window4NibbleBytes. `escapes` takes up to
// count bytes; returns how many.
size_t Window4Encode(const std::byte* values, size_t count, uint32_t base, std::byte* fields,
                     std::byte* nibbles, std::byte* escapes) noexcept;
// False if there are fewer or more escapes than values ask for.
bool Window4Decode(const std::byte* fields, const std::byte* nibbles, size_t count, uint32_t base,
                   const std::byte* escapes, size_t escape_count, std::byte* values) noexcept;

namespace ref {
size_t Window4Encode(const std::byte* values, size_t count, uint32_t base, std::byte* fields,
                     std::byte* nibbles, std::byte* escapes) noexcept;
bool Window4Decode(const std::byte* fields, const std::byte* nibbles, size_t count, uint32_t base,
                   const std::byte* escapes, size_t escape_count, std::byte* values) noexcept;
}  // namespace ref

}  // namespace kv
