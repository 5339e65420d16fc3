// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

// TurboQuant as vLLM and LMCache ship it: keys as directions, rotated and quantised value by value
// to a table made for normal values, with their norms; values between their extremes. Vectors are
// `dim` values one after another; dim is a power of two.
namespace kv::quant {

// The Lloyd-Max table of 2^bits values for N(0, 1 / dim), ascending, and where cells meet. The
// middle one of these is 0 up to the solver's rounding, which is not the engines'.
struct TurboTable {
  std::vector<float> centroids, midpoints;
};
TurboTable LloydMax(uint32_t dim, uint32_t bits);

struct TurboKeys {
  std::vector<uint8_t> indices;  // one a value, unpacked
  std::vector<uint16_t> norms;   // binary16, one a vector
};
// `signs` is empty (vLLM) or one sign a dim (LMCache).
TurboKeys StoreTurboKeys(std::span<const float> values, uint32_t dim, uint32_t bits,
                         std::span<const float> signs);
void ReadTurboKeys(const TurboKeys& stored, uint32_t dim, uint32_t bits,
                   std::span<const float> signs, std::span<float> out);

struct TurboValues {
  std::vector<uint8_t> codes;           // one a value, unpacked
  std::vector<uint16_t> scales, least;  // binary16, one a vector
};
TurboValues StoreTurboValues(std::span<const float> values, uint32_t dim, uint32_t bits);
void ReadTurboValues(const TurboValues& stored, uint32_t dim, std::span<float> out);

// The signs that LMCache draws for a layer: torch's generator, seed 42 + 1337 * layer.
std::vector<float> LmcacheSigns(uint32_t dim, uint32_t layer);

}  // namespace kv::quant
