// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// Splits 16-bit floats into symbols (sign, exponent and the top mantissa bits) and the raw bits
// below them, and joins them again.
namespace kv {

// What stands in 16 bits.
struct HalfForm {
  bool bfloat = false;
  // Other than 0 for 8-bit floats, as f16 whose sign is theirs and whose magnitude is theirs moved
  // up by so many bits: f8_e5m2 by 8, f8_e4m3, which is then divided by 256, by 7.
  uint32_t byte_shift = 0;
};

struct SymbolShape {
  HalfForm form = {};
  uint32_t symbol_bits = 6;  // 6, 7 or 8: sign, 5 exponent bits, 0 to 2 mantissa bits
  // bf16 only: the exponents base + 1 to base + 31 are the values 1 to 31 of the symbol's exponent
  // field. Value 0 is exponent 0 if the base is 0, else an escape: the exponent is listed apart.
  uint32_t exponent_base = 0;

  // An 8-bit float is its own symbol.
  uint32_t raw_bits() const {
    return form.byte_shift != 0 ? 0 : (form.bfloat ? 13 : 16) - symbol_bits;
  }
  bool has_escapes() const { return form.bfloat && exponent_base > 0; }
  uint32_t field_mask() const { return 31u << (symbol_bits - 6); }  // of the exponent in a symbol
  // Without a list of exponents.
  bool CanDecode(uint32_t symbol) const { return !has_escapes() || (symbol & field_mask()) != 0; }
};

// Writes the symbols of `count` values at any alignment. An exponent outside the range gets field
// 0; the caller lists it.
void ToSymbols(const std::byte* values, size_t count, const SymbolShape& shape,
               uint8_t* symbols) noexcept;

// Returns the bits of the largest finite magnitude, 0 if no value is finite.
uint32_t LargestFinite(const std::byte* values, size_t count, bool bfloat) noexcept;

// Returns how many bytes the raw-bit planes of `count` values take.
size_t RawPlaneBytes(size_t count, uint32_t raw_bits) noexcept;

// Packs the raw bits into planes of 8, 4, 2 and 1 bits: those that are binary digits of raw_bits,
// the widest plane first, with the lowest bits. In a plane of width w, value i + g * (padded / (8 /
// w)) is at bits g * w of byte i, where padded is `count` rounded up to a multiple of 8.
void PackRawBits(const std::byte* values, size_t count, uint32_t raw_bits,
                 std::byte* planes) noexcept;

// Undoes both: joins symbols, escaped exponents (in order) and planes to values. Returns false if
// there are fewer or more escapes than the symbols ask for.
bool FromSymbols(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                 const uint8_t* escapes, size_t escape_count, const std::byte* planes,
                 std::byte* values) noexcept;

// Flips, in the values, the bits that byte `at` of their planes holds: those set in `flipped`.
void FlipRawBits(size_t count, uint32_t raw_bits, size_t at, uint8_t flipped,
                 std::byte* values) noexcept;

// Do FromSymbols in two steps: the first writes values with raw bits only, unless there are none,
// the second adds the symbols to them, except escaped exponents.
void UnpackRawBits(const std::byte* planes, size_t count, uint32_t raw_bits,
                   std::byte* values) noexcept;
void AddSymbols(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                std::byte* values) noexcept;
// Writes escaped exponents into the values whose symbols ask for them, from escapes[used] on, and
// advances `used`. Returns false if there are too few.
bool AddEscapes(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                const uint8_t* escapes, size_t escape_count, size_t& used,
                std::byte* values) noexcept;
// Lists the exponents of the values whose symbols ask for it, at most `room` of them. Returns how
// many there are.
size_t ListEscapes(const std::byte* values, const uint8_t* symbols, size_t count,
                   const SymbolShape& shape, uint8_t* escapes, size_t room) noexcept;

namespace ref {
void ToSymbols(const std::byte* values, size_t count, const SymbolShape& shape,
               uint8_t* symbols) noexcept;
bool AddEscapes(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                const uint8_t* escapes, size_t escape_count, size_t& used,
                std::byte* values) noexcept;
size_t ListEscapes(const std::byte* values, const uint8_t* symbols, size_t count,
                   const SymbolShape& shape, uint8_t* escapes, size_t room) noexcept;
}  // namespace ref

}  // namespace kv
