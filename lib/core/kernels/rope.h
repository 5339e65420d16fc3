// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Which values of a head turn together: i and i + n / 2 of the rotated part (NeoX, Hugging Face),
// or 2i and 2i + 1 (GPT-J, original Llama).
enum class RopePairs { kHalves, kNeighbours };

// Turns `pairs` pairs (x, y) in place: x' = x c - y s, y' = y c + x s, with the cosine and sine of
// each pair. Products and the sum in double, one rounding to float at the end. Any alignment; equal
// on every SIMD target.
void RotatePairs(float* values, size_t pairs, RopePairs style, const double* cosines,
                 const double* sines) noexcept;

namespace ref {
void RotatePairs(float* values, size_t pairs, RopePairs style, const double* cosines,
                 const double* sines) noexcept;
}  // namespace ref

}  // namespace kv
