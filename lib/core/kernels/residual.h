// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// Codes 16-bit floats by how far each lies from one that is expected in its place, counted in
// values that exist between the two. lib/core/codec/ref/FORMAT.md spells out every step; all of
// them are on integers.
namespace kv {

constexpr uint32_t kResidualClasses = 32;
constexpr uint32_t kResidualSymbolBits = 7;
constexpr uint32_t kResidualMagnitudes = 64;  // 0 and 63 buckets of distances
constexpr uint32_t kMostResidualBits = 13;    // raw bits of one value

// How the floats are laid out.
struct ResidualGrid {
  bool bfloat = false;
  uint32_t low_zeros = 0;  // bits that are 0 in every coded value, at most 15; they are left out
};

// Writes the class of each value: how many octaves above one step of the expected value errors are
// likely to lie. `scales` are the channels' half octaves, `factor` what the row adds to them.
void ResidualClassesOf(const uint16_t* expected, const int16_t* scales, size_t count,
                       int32_t factor, bool bfloat, uint8_t* classes) noexcept;

// Writes the symbol of each value, below 127, and the raw bits that go with it.
void ResidualSymbols(const uint16_t* values, const uint16_t* expected, size_t count,
                     const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) noexcept;

// A stream of raw bits, the lowest of each byte first.
struct ResidualBits {
  const std::byte* bytes = nullptr;
  size_t size = 0;  // in bytes
  size_t at = 0;    // in bits
};

// How many raw bits go with a symbol.
uint32_t ResidualBitCount(uint8_t symbol) noexcept;
// Appends raw bits at `at`, from where on the bytes must be 0, and returns the new end. There must
// be room for 8 bytes more than are needed.
size_t PackResidualBits(const uint8_t* symbols, const uint16_t* extras, size_t count,
                        std::byte* bytes, size_t at) noexcept;

// Undoes ResidualSymbols and advances `bits`. Returns false if a symbol is none, if the bits end
// early or if a value would lie outside the type's range; what it wrote then is without meaning.
bool ResidualValues(const uint8_t* symbols, const uint16_t* expected, size_t count,
                    const ResidualGrid& grid, ResidualBits& bits, uint16_t* values) noexcept;

namespace ref {
// The specification, one value after another.
void ResidualClassesOf(const uint16_t* expected, const int16_t* scales, size_t count,
                       int32_t factor, bool bfloat, uint8_t* classes) noexcept;
void ResidualSymbols(const uint16_t* values, const uint16_t* expected, size_t count,
                     const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) noexcept;
size_t PackResidualBits(const uint8_t* symbols, const uint16_t* extras, size_t count,
                        std::byte* bytes, size_t at) noexcept;
bool ResidualValues(const uint8_t* symbols, const uint16_t* expected, size_t count,
                    const ResidualGrid& grid, ResidualBits& bits, uint16_t* values) noexcept;
}  // namespace ref

// How large the errors of a row are, beside those of its channels. The bytes of archives depend on
// these floats: each is the same on every SIMD target.

// errors[i] = |values[i] - expected[i]|, or 0 where that is no number or more than 1e30, of which
// sums might overflow.
void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept;

// The mean of errors[i] * weights[i], each taken as 64 where it is more or no number: one outlier
// says nothing of a row. Element i is added on lane i % 16, then the lanes one after another.
float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept;

// sums[i] += errors[i] * weight
void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept;

namespace ref {
void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept;
float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept;
void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept;
}  // namespace ref

}  // namespace kv
