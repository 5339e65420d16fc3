// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv {

// Multiplies each run of `size` values (a power of two that divides `count`) by the orthonormal
// Sylvester matrix H_size / sqrt(size), with H_1 = 1 and H_2n = [[H_n, H_n], [H_n, -H_n]], in
// place. The matrix is symmetric and its own inverse. The butterflies run from neighbours to
// halves, in float, and the scale is multiplied in at the end, so that every machine has the same
// bits. Any alignment.
void Hadamard(float* values, size_t count, uint32_t size) noexcept;

// Multiplies as Hadamard does, with the scale multiplied in first, as llama.cpp's cache write does.
// The bits differ if the square root of `size` is not a power of two.
void HadamardScaledFirst(float* values, size_t count, uint32_t size) noexcept;
// Multiplies by H_size, without the scale.
void HadamardUnscaled(float* values, size_t count, uint32_t size) noexcept;

}  // namespace kv
