// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// The values of a head that form a pair: i and i + n / 2 of the rotated part (NeoX, Hugging Face),
// or 2i and 2i + 1 (GPT-J, the original Llama).
enum class RopePairs { kHalves, kNeighbours };

// Rotates `pairs` pairs (x, y) in place: x' = x c - y s, y' = y c + x s, with the cosine c and the
// sine s of each pair. Products and sums are doubles and are rounded to float once, at the end, so
// that every machine has the same bits. Any alignment.
void RotatePairs(float* values, size_t pairs, RopePairs style, const double* cosines,
                 const double* sines) noexcept;

}  // namespace kv
