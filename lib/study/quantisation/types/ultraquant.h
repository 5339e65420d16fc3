// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

// vLLM's ultraquant_4bit: E2M1 codes and a power of two for each 32 values. Values are vectors of
// `dim`, one after another; dim is a power of two and a multiple of 32.
namespace kv::quant {

inline constexpr uint32_t kUltraGroup = 32;

struct UltraCodes {
  std::vector<uint8_t> codes;      // two values a byte, the even one low; the sign is bit 3
  std::vector<uint8_t> exponents;  // E8M0, one for each 32 values
};

// With `rotate`, vectors are multiplied by H / sqrt(dim) first, as the engine does with keys. The
// product adds up in the order of the dims, which decides values midway between two codes.
UltraCodes StoreUltra(std::span<const float> values, uint32_t dim, bool rotate);
// Writes what the codes say; rotated vectors stay rotated.
void ReadUltra(const UltraCodes& stored, std::span<float> out);

}  // namespace kv::quant
