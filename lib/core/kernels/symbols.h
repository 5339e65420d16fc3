// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// Splits 16-bit floats into symbols (sign, exponent and the top mantissa bits) and the raw bits
// below them, and joins them again. Symbols are compressible; raw bits are close to noise.
namespace kv {

// The type of 16-bit values.
struct HalfForm {
  bool bfloat = false;
  // Nonzero for 8-bit floats that are represented as f16: their sign is the f16's, and their
  // magnitude is shifted left by this number of bits: 8 for f8_e5m2, 7 for f8_e4m3, which thereby
  // is divided by 256.
  uint32_t byte_shift = 0;
};

struct SymbolShape {
  HalfForm form = {};
  uint32_t symbol_bits = 6;  // 6, 7 or 8: sign, 5 exponent bits, 0 to 2 mantissa bits
  // bf16 only: exponents base + 1 to base + 31 have the values 1 to 31 of the symbol's exponent
  // field. Value 0 means exponent 0 if the base is 0, and otherwise an escape: the exponent is
  // listed separately.
  uint32_t exponent_base = 0;

  // An 8-bit float is its own symbol and has no raw bits.
  uint32_t raw_bits() const {
    return form.byte_shift != 0 ? 0 : (form.bfloat ? 13 : 16) - symbol_bits;
  }
  bool has_escapes() const { return form.bfloat && exponent_base > 0; }
  // Returns the mask of a symbol's exponent field.
  uint32_t field_mask() const { return 31u << (symbol_bits - 6); }
  // Returns true if the symbol can be decoded without a list of exponents.
  bool CanDecode(uint32_t symbol) const { return !has_escapes() || (symbol & field_mask()) != 0; }
};

// Writes the symbols of `count` values at any alignment. Exponents outside the window get field 0;
// the caller lists them with ListEscapes.
void ToSymbols(const std::byte* values, size_t count, const SymbolShape& shape,
               uint8_t* symbols) noexcept;

// Returns the bits of the largest finite magnitude; 0 if no value is finite.
uint32_t LargestFinite(const std::byte* values, size_t count, bool bfloat) noexcept;

// Returns the size of the raw-bit planes of `count` values.
size_t RawPlaneBytes(size_t count, uint32_t raw_bits) noexcept;

// Packs the raw bits into planes of 8, 4, 2 and 1 bits: one for each binary digit that is set in
// raw_bits, the widest plane first, with the lowest bits. In a plane of width w, value i + g *
// (padded / (8 / w)) is at bits g * w of byte i, where padded is `count` rounded up to a multiple
// of 8.
void PackRawBits(const std::byte* values, size_t count, uint32_t raw_bits,
                 std::byte* planes) noexcept;

// Joins symbols, escaped exponents (in order) and planes into values. Returns false if there are
// fewer or more escapes than the symbols require.
bool FromSymbols(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                 const uint8_t* escapes, size_t escape_count, const std::byte* planes,
                 std::byte* values) noexcept;

// Byte `at` of the planes holds bits of several values: flips those bits that are set in `flipped`.
void FlipRawBits(size_t count, uint32_t raw_bits, size_t at, uint8_t flipped,
                 std::byte* values) noexcept;

// Perform FromSymbols in two steps: the first writes values with raw bits only (and does nothing if
// there are none), the second adds the symbols, except escaped exponents.
void UnpackRawBits(const std::byte* planes, size_t count, uint32_t raw_bits,
                   std::byte* values) noexcept;
void AddSymbols(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                std::byte* values) noexcept;
// Writes escaped exponents, from escapes[used] on, into the values whose symbols require them, and
// advances `used`. Returns false if there are too few.
bool AddEscapes(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                const uint8_t* escapes, size_t escape_count, size_t& used,
                std::byte* values) noexcept;
// Lists the exponents of the values whose symbols require it, at most `room` of them. Returns their
// number.
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
