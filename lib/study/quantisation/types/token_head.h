// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

// vLLM's caches with a scale for each token and kv head (int8_, fp8_ and int4_per_token_head).
// Values are vectors of `dim`, one after another.
namespace kv::quant {

struct TokenHeadCodes {
  std::vector<uint8_t> codes;  // one byte a value; int4: two values a byte, the even one low
  std::vector<float> scales;   // one a vector
};

TokenHeadCodes StoreInt8(std::span<const float> values, uint32_t dim);
void ReadInt8(const TokenHeadCodes& stored, uint32_t dim, std::span<float> out);

TokenHeadCodes StoreFloat8(std::span<const float> values, uint32_t dim);
void ReadFloat8(const TokenHeadCodes& stored, uint32_t dim, std::span<float> out);

// Vectors are multiplied by `signs` and by a Hadamard matrix of the largest power of two that
// divides `dim`, in pieces of it, and rounded to binary16. The zero point is in the low 4 bits of
// each scale. On GPUs the engine rotates in bfloat16, and its codes differ.
TokenHeadCodes StoreInt4(std::span<const float> values, uint32_t dim, std::span<const float> signs);
void ReadInt4(const TokenHeadCodes& stored, uint32_t dim, std::span<const float> signs,
              std::span<float> out);

// The signs that vLLM draws for vectors of this size: torch's generator, seed 0x9E3779B9.
std::vector<float> VllmSigns(uint32_t dim);

}  // namespace kv::quant
