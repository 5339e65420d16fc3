// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// Codes 16-bit floats by their distance from expected values, counted in representable values
// between the two. lib/core/codec/ref/FORMAT.md spells out every step; all of them are on integers.
namespace kv {

constexpr uint32_t kResidualClasses = 32;
constexpr uint32_t kResidualSymbolBits = 7;
constexpr uint32_t kResidualMagnitudes = 64;  // 0, and 63 buckets of larger distances

// Format of the coded floats: f16 or bf16, and how many low bits are always 0.
struct ResidualGrid {
  bool bfloat = false;
  // number of low bits, at most 15, that are 0 in every coded value and left out
  uint32_t low_zeros = 0;
};

// Computes the class of each value: the octaves by which its error is expected to exceed one step
// of the expected value. `scales` are the channels' half octaves; the row adds `factor` to them.
void ClassifyResiduals(const uint16_t* expected, const int16_t* scales, size_t count,
                       int32_t factor, bool bfloat, uint8_t* classes) noexcept;

// Computes the symbol of each value, below 127, and the raw bits that accompany it.
void ResidualSymbols(const uint16_t* values, const uint16_t* expected, size_t count,
                     const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) noexcept;

// A stream of raw bits, the lowest of each byte first.
struct ResidualBits {
  const std::byte* bytes = nullptr;
  size_t size = 0;  // in bytes
  size_t at = 0;    // in bits
};

// Returns the number of raw bits that accompany a symbol.
uint32_t ResidualBitCount(uint8_t symbol) noexcept;
// Appends raw bits at bit `at`, from where on the bytes must be 0, and returns the new end. There
// must be room for 8 bytes more than needed, because whole words are stored.
size_t PackResidualBits(const uint8_t* symbols, const uint16_t* extras, size_t count,
                        std::byte* bytes, size_t at) noexcept;

// Undoes ResidualSymbols and advances `bits`. Returns false if a symbol is invalid, the bits end
// early or a value would lie outside the type's range; the values are then meaningless.
bool ResidualValues(const uint8_t* symbols, const uint16_t* expected, size_t count,
                    const ResidualGrid& grid, ResidualBits& bits, uint16_t* values) noexcept;

namespace ref {
// The specification: one value after another.
void ClassifyResiduals(const uint16_t* expected, const int16_t* scales, size_t count,
                       int32_t factor, bool bfloat, uint8_t* classes) noexcept;
void ResidualSymbols(const uint16_t* values, const uint16_t* expected, size_t count,
                     const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) noexcept;
size_t PackResidualBits(const uint8_t* symbols, const uint16_t* extras, size_t count,
                        std::byte* bytes, size_t at) noexcept;
bool ResidualValues(const uint8_t* symbols, const uint16_t* expected, size_t count,
                    const ResidualGrid& grid, ResidualBits& bits, uint16_t* values) noexcept;
}  // namespace ref

// Measure the errors of a row relative to those of its channels. The bytes of archives depend on
// these floats: each is the same on every SIMD target.
//
// errors[i] = |values[i] - expected[i]|, or 0 if that is NaN or more than 1e30, whose sums could
// overflow.
void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept;

// Returns the mean of errors[i] * weights[i], each limited to 64 (NaN counts as 64), so that an
// outlier does not decide about a row. Element i is added to lane i % 16, then the lanes one after
// another.
float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept;

// Adds errors[i] * weight to sums[i].
void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept;

namespace ref {
void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept;
float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept;
void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept;
}  // namespace ref

}  // namespace kv
