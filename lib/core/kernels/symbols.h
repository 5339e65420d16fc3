// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// A 16-bit float as one symbol (sign, exponent and the top mantissa bits) and raw bits below it.
namespace kv {

struct SymbolShape {
  bool bfloat = false;
  uint32_t symbol_bits = 6;  // 6, 7 or 8: sign, 5 exponent bits, 0 to 2 mantissa bits
  // bf16 only: exponents base + 1 ... base + 31 are symbols 1 ... 31 of the exponent field; field 0
  // is exponent 0 if base is 0, else an escape.
  uint32_t exponent_base = 0;

  uint32_t raw_bits() const { return (bfloat ? 13 : 16) - symbol_bits; }
  bool has_escapes() const { return bfloat && exponent_base > 0; }
};

// symbols[i] for `count` values at any alignment; escapes are left to the caller (field 0).
void ToSymbols(const std::byte* values, size_t count, const SymbolShape& shape,
               uint8_t* symbols) noexcept;

// The bits of the largest magnitude that is finite, 0 if none is.
uint32_t LargestFinite(const std::byte* values, size_t count, bool bfloat) noexcept;

// Bytes of the raw-bit planes of `count` values.
size_t RawPlaneBytes(size_t count, uint32_t raw_bits) noexcept;

// The raw bits as planes of 8, 4, 2 and 1 bits (the binary digits of raw_bits, the widest plane
// holding the lowest bits). In a plane of width w, value i + g * (padded / (8 / w)) is at bits g *
// w of byte i, where padded is `count` rounded up to a multiple of 8.
void PackRawBits(const std::byte* values, size_t count, uint32_t raw_bits,
                 std::byte* planes) noexcept;

// The inverse of both: values from symbols, escaped exponents (in order) and planes. False when
// there are fewer or more escapes than symbols ask for.
bool FromSymbols(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                 const uint8_t* escapes, size_t escape_count, const std::byte* planes,
                 std::byte* values) noexcept;

// Flips those bits of values that byte `at` of their planes holds.
void FlipRawBits(size_t count, uint32_t raw_bits, size_t at, uint8_t flipped,
                 std::byte* values) noexcept;

// The two halves of that: values of nothing but raw bits, and what symbols add to them (escapes
// left to the caller).
void UnpackRawBits(const std::byte* planes, size_t count, uint32_t raw_bits,
                   std::byte* values) noexcept;
void AddSymbols(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                std::byte* values) noexcept;
// Writes escaped exponents over those of symbols that ask for them, from escapes[used] on. False
// when there are too few.
bool AddEscapes(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                const uint8_t* escapes, size_t escape_count, size_t& used,
                std::byte* values) noexcept;

namespace ref {
void ToSymbols(const std::byte* values, size_t count, const SymbolShape& shape,
               uint8_t* symbols) noexcept;
}  // namespace ref

}  // namespace kv
