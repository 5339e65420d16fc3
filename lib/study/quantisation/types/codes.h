// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/base/half.h"

namespace kv::quant {

// Integer codes of groups with a range per group, as KIVI, transformers (quanto) and KVQuant make
// them. A group is `count` values, `step` apart. Each function writes to `out` the values that
// attention reads.
struct GroupCodes {
  std::vector<uint8_t> codes;  // one per value, unpacked
  float scale = 0;
  float shift = 0;  // KIVI: the minimum; quanto: its negative
};

// KIVI: every operation rounds to binary16. A constant group has codes 0 and the minimum.
GroupCodes StoreKivi(const float* values, size_t count, size_t step, uint32_t bits, float* out);

// Rounds to binary16 or stays in binary32; quanto uses the model's type.
enum class Arithmetic { kHalf, kFloat };
// quanto's result is undefined for constant groups; here they come back unchanged.
GroupCodes StoreQuanto(const float* values, size_t count, size_t step, uint32_t bits,
                       Arithmetic arithmetic, float* out);

// KVQuant's integer quantiser with a range from the values. The zero point is clamped, so groups of
// one sign lose precision. With `sparse`, values at or beyond the 0.5% and 99.5% quantiles are kept
// unchanged. Returns their number.
uint64_t StoreKvQuant(const float* values, size_t count, size_t step, uint32_t bits, bool sparse,
                      float* out);

// vLLM's octave_k3v4, octave_k3v3 and octave_k3v3_compact: vectors of 64 values with fixed signs
// are rotated, and each element is quantised with a table for the normal distribution. A scale per
// vector keeps the product of original and stored vector equal to the squared length of the
// original.

inline constexpr uint32_t kOctaveDim = 64;

// Returns the engine's signs for vectors of 64; those of other sizes are unknown.
std::vector<float> OctaveSigns();

struct OctaveCodes {
  std::vector<uint8_t> indices;  // one per value, unpacked
  std::vector<uint16_t> scales;  // binary16, one per vector
};
OctaveCodes StoreOctave(std::span<const float> values, uint32_t bits);
void ReadOctave(const OctaveCodes& stored, uint32_t bits, std::span<float> out);

// vLLM's caches with a scale for each token and kv head (int8_, fp8_ and int4_per_token_head).
// Values are vectors of `dim`, one after another.

struct TokenHeadCodes {
  std::vector<uint8_t> codes;  // one byte per value; int4: two values per byte, the even one low
  std::vector<float> scales;   // one per vector
};

TokenHeadCodes StoreInt8(std::span<const float> values, uint32_t dim);
void ReadInt8(const TokenHeadCodes& stored, uint32_t dim, std::span<float> out);

TokenHeadCodes StoreFloat8(std::span<const float> values, uint32_t dim);
void ReadFloat8(const TokenHeadCodes& stored, uint32_t dim, std::span<float> out);

// Multiplies vectors by `signs` and, piece by piece, by a Hadamard matrix of the largest power of
// two that divides `dim`, and rounds to binary16. The zero point is in the low 4 bits of each
// scale. On GPUs the engine rotates in bfloat16, and its codes differ.
TokenHeadCodes StoreInt4(std::span<const float> values, uint32_t dim, std::span<const float> signs);
void ReadInt4(const TokenHeadCodes& stored, uint32_t dim, std::span<const float> signs,
              std::span<float> out);

// Returns the signs that vLLM draws for vectors of this size: torch's generator, seed 0x9E3779B9.
std::vector<float> VllmSigns(uint32_t dim);

// TurboQuant as vLLM and LMCache ship it. A K vector is stored as its norm and its rotated
// direction, each element quantised with a table for the normal distribution. A V vector is min-max
// quantised. Vectors of `dim` elements follow one another; dim is a power of two.

// The Lloyd-Max table of 2^bits values for N(0, 1 / dim), ascending, and the thresholds between
// them. The middle threshold is 0 up to the solver's rounding, which differs from the engines'.
struct TurboTable {
  std::vector<float> centroids, midpoints;
};
TurboTable LloydMax(uint32_t dim, uint32_t bits);

struct TurboKeys {
  std::vector<uint8_t> indices;  // one per value, unpacked
  std::vector<uint16_t> norms;   // binary16, one per vector
};
// `signs` is empty (vLLM) or has one sign per dim (LMCache).
TurboKeys StoreTurboKeys(std::span<const float> values, uint32_t dim, uint32_t bits,
                         std::span<const float> signs);
void ReadTurboKeys(const TurboKeys& stored, uint32_t dim, uint32_t bits,
                   std::span<const float> signs, std::span<float> out);

struct TurboValues {
  std::vector<uint8_t> codes;           // one per value, unpacked
  std::vector<uint16_t> scales, least;  // binary16, one per vector
};
TurboValues StoreTurboValues(std::span<const float> values, uint32_t dim, uint32_t bits);
void ReadTurboValues(const TurboValues& stored, uint32_t dim, std::span<float> out);

// Returns the signs that LMCache draws for a layer: torch's generator, seed 42 + 1337 * layer.
std::vector<float> LmcacheSigns(uint32_t dim, uint32_t layer);

// vLLM's ultraquant_4bit: E2M1 codes and a power of two for each 32 values. Values are vectors of
// `dim`, one after another; dim is a power of two and a multiple of 32.

inline constexpr uint32_t kUltraGroup = 32;

struct UltraCodes {
  std::vector<uint8_t> codes;      // two values per byte, the even one low; the sign is bit 3
  std::vector<uint8_t> exponents;  // E8M0, one per 32 values
};

// With `rotate`, vectors are first multiplied by H / sqrt(dim), as the engine does with keys. The
// product is summed in the order of the dims, which decides values midway between two codes.
UltraCodes StoreUltra(std::span<const float> values, uint32_t dim, bool rotate);
// Writes the decoded values; rotated vectors stay rotated.
void ReadUltra(const UltraCodes& stored, std::span<float> out);

// Helpers of the quantisers.

inline float ToHalf(float value) { return F16ToF32(F32ToF16(value)); }

struct Range {
  float least = 0, most = 0;
};

// Returns the range of values that lie `step` apart.
inline Range FindRange(const float* values, size_t count, size_t step = 1) {
  Range range{values[0], values[0]};
  for (size_t i = 1; i < count; ++i) {
    range.least = std::min(range.least, values[i * step]);
    range.most = std::max(range.most, values[i * step]);
  }
  return range;
}

inline float LargestMagnitude(std::span<const float> values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::fabs(value));
  return most;
}

// Converts an integer code computed in float; a NaN, from values that are not finite, becomes 0.
inline uint32_t IntegerCode(float code) {
  return std::isnan(code) ? 0 : static_cast<uint32_t>(code);
}

// Rounds halves away from zero, by adding 0.5 and truncating, as several engines do.
inline float RoundByHalf(float value) {
  return std::trunc(value < 0 ? value - 0.5f : value + 0.5f);
}

}  // namespace kv::quant
