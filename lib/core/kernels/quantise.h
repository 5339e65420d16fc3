// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by quantise.cc, quantise_reference.cc

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/core/base/dtype.h"
#include "lib/core/base/half.h"

// Stores floats in the smaller types of engines, equal to the last bit. The scalar references are
// the specification; blocks and layouts are those of lib/core/kernels/dequantise.h.
namespace kv {

// Rounding of q8_0, which depends on who writes it: x86 builds with AVX multiply by 127 / amax and
// round ties to even; plain C (and tools that make files) multiplies by 1 / d and rounds ties away
// from zero; NEON multiplies by 1 / d and rounds ties to even.
enum class Q8Rounding { kAvx, kReference, kArm };

// Quantises whole blocks of 32 values, as a cache write does. `dtype` is one of the block types;
// `out` has BytesOf(dtype, values.size()) bytes. For IQ4_NL blocks below 1e-15 llama.cpp leaves the
// codes unset; here they are 8. For blocks with NaN or infinities no engine defines a result.
void QuantiseBlocks(DType dtype, std::span<const float> values, std::byte* out,
                    Q8Rounding rounding = Q8Rounding::kAvx) noexcept;

// Quantises IQ4_NL blocks with the search for a scale that file-making tools do
// (ggml_quantize_chunk) and cache writes skip.
void QuantiseIq4NlSearched(std::span<const float> values, std::byte* out) noexcept;

// Store value / scale as 8-bit floats, and read codes times the scale. `dtype` is kF8E4M3 or
// kF8E5M2.
void QuantiseFloat8(DType dtype, std::span<const float> values, float scale,
                    Float8Overflow overflow, uint8_t* out) noexcept;
void DequantiseFloat8(DType dtype, std::span<const uint8_t> codes, float scale,
                      float* out) noexcept;

// Reads q8_0 blocks as d * q, for ToFloats.
void DequantiseQ8_0(const std::byte* blocks, std::span<float> out) noexcept;

namespace ref {
void QuantiseBlocks(DType dtype, std::span<const float> values, std::byte* out,
                    Q8Rounding rounding) noexcept;
void QuantiseFloat8(DType dtype, std::span<const float> values, float scale,
                    Float8Overflow overflow, uint8_t* out) noexcept;
void DequantiseFloat8(DType dtype, std::span<const uint8_t> codes, float scale,
                      float* out) noexcept;
void DequantiseQ8_0(const std::byte* blocks, std::span<float> out) noexcept;
}  // namespace ref

}  // namespace kv
