// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

namespace kv {

// Matrix products through the BLAS. Matrices are row-major; `ld*` is the distance of rows in
// elements. Each runs on the calling thread alone, so callers spread tiles over a ThreadPool; of
// more than 32 calls at once the others wait. Equal calls give equal bits on one machine, whatever
// the threads. Extents of zero are allowed; k = 0 clears C.

// Computes C[m][n] = A[m][k] * B[n][k]^T, or adds to C if `accumulate`.
void GemmNT(const float* a, uint64_t lda, const float* b, uint64_t ldb, float* c, uint64_t ldc,
            uint64_t m, uint64_t n, uint64_t k, bool accumulate = false);

void GemmNT(const double* a, uint64_t lda, const double* b, uint64_t ldb, double* c, uint64_t ldc,
            uint64_t m, uint64_t n, uint64_t k);

// Computes C[m][n] = A[m][k] * B[k][n], or adds to C if `accumulate`.
void GemmNN(const float* a, uint64_t lda, const float* b, uint64_t ldb, float* c, uint64_t ldc,
            uint64_t m, uint64_t n, uint64_t k, bool accumulate = false);

namespace ref {

// Computes one element of either product in double: the value that the element must be near to.
double Dot(const float* a, uint64_t a_step, const float* b, uint64_t b_step, uint64_t k) noexcept;

}  // namespace ref
}  // namespace kv
