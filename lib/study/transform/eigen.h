// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Eigenvectors of symmetric matrices.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/core/base/parallel.h"

namespace kv::transform {

struct Eigen {
  std::vector<double> values;   // descending
  std::vector<double> vectors;  // [value][n]; the entry of greatest magnitude is positive
};

// Computes eigenvalues and eigenvectors of a symmetric matrix [n][n], by Householder reflections
// and the implicit QL method, in about 9 n^3 operations. Not LAPACK, because it needs Fortran's
// run-time library, which the static program does not have. Equal inputs give equal bits for any
// number of threads.
Eigen SymmetricEigen(std::vector<double> matrix, uint64_t n, ThreadPool& pool);

}  // namespace kv::transform
