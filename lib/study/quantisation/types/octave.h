// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

// vLLM's octave_k3v4, octave_k3v3 and octave_k3v3_compact: vectors of 64 values with fixed signs,
// rotated, and quantised value by value to a table made for normal values. A scale for each vector
// keeps its product with what is stored as long as the vector itself.
namespace kv::quant {

inline constexpr uint32_t kOctaveDim = 64;

// The table of 2^bits values, ascending; bits is 3 or 4.
std::span<const float> OctaveTable(uint32_t bits);
// The engine's signs of vectors of 64; those of other sizes are not known.
std::vector<float> OctaveSigns();

struct OctaveCodes {
  std::vector<uint8_t> indices;  // one a value, unpacked
  std::vector<uint16_t> scales;  // binary16, one a vector
};
OctaveCodes StoreOctave(std::span<const float> values, uint32_t bits);
void ReadOctave(const OctaveCodes& stored, uint32_t bits, std::span<float> out);

}  // namespace kv::quant
