// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Adds to each of `columns` sums of each row the products factors[row][i] * vectors[i][column], for
// ascending i: one rounding for each product and one for each sum, so that every machine has the
// same bits. Factors are [rows][count], sums [rows][columns]; vectors are `stride` values apart.
// Any alignment. A matrix product of a BLAS is faster, but its order of sums differs between
// machines, and archives depend on every bit.
void AddProducts(const float* factors, size_t rows, size_t count, const float* vectors,
                 size_t stride, size_t columns, float* sums) noexcept;

namespace ref {
void AddProducts(const float* factors, size_t rows, size_t count, const float* vectors,
                 size_t stride, size_t columns, float* sums) noexcept;
}  // namespace ref

}  // namespace kv
