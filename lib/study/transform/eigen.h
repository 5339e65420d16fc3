// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/core/base/parallel.h"

namespace kv::transform {

struct Eigen {
  std::vector<double> values;   // falling
  std::vector<double> vectors;  // [value][n]; the entry of greatest magnitude is positive
};

// Eigenvalues and eigenvectors of a symmetric matrix [n][n], by Householder reflections and the
// implicit QL method. Of our own, because LAPACK needs Fortran's run-time library, which the static
// program does not have; equal inputs give equal bits, whatever the threads. About 9 n^3
// operations.
Eigen SymmetricEigen(std::vector<double> matrix, uint64_t n, ThreadPool& pool);

}  // namespace kv::transform
