// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

namespace kv {

// C[m][n] = A[m][k] * B[n][k]^T, or += with `accumulate`. Row-major, `ld*` floats from row to row.
// Runs on the calling thread alone, so callers spread tiles over a ThreadPool (more than 32 calls
// at once wait for each other); equal calls give equal bits. Extents of zero are allowed (k = 0
// clears C).
void GemmNT(const float* a, uint64_t lda, const float* b, uint64_t ldb, float* c, uint64_t ldc,
            uint64_t m, uint64_t n, uint64_t k, bool accumulate = false) noexcept;

void GemmNT(const double* a, uint64_t lda, const double* b, uint64_t ldb, double* c, uint64_t ldc,
            uint64_t m, uint64_t n, uint64_t k) noexcept;

// C[m][n] = A[m][k] * B[k][n], or +=.
void GemmNN(const float* a, uint64_t lda, const float* b, uint64_t ldb, float* c, uint64_t ldc,
            uint64_t m, uint64_t n, uint64_t k, bool accumulate = false) noexcept;

namespace ref {

// What both compute, in double: the value each result must be near to.
double Dot(const float* a, uint64_t a_step, const float* b, uint64_t b_step, uint64_t k) noexcept;

}  // namespace ref
}  // namespace kv
