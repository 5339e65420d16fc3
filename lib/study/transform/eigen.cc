// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Eigenvalues of a symmetric matrix: Householder reflections to a tridiagonal matrix, then the
// implicit QL method on it.
#include "lib/study/transform/eigen.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"

namespace kv::transform {
namespace {

constexpr uint64_t kRowsAtOnce = 64, kColumnsAtOnce = 256;
constexpr double kNoise = 1e-3;  // elements below this share of the largest are rounding noise
constexpr int kMostSweeps = 60;  // per eigenvalue; two or three are usual

void ForBlocks(ThreadPool& pool, uint64_t count, uint64_t block,
               const std::function<void(uint64_t begin, uint64_t end)>& run) {
  pool.ParallelFor(CeilDiv(count, block),
                   [&](uint64_t i) { run(i * block, std::min(count, (i + 1) * block)); });
}

double DotProduct(const double* a, const double* b, uint64_t count) {
  double sums[4] = {};
  uint64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (uint64_t lane = 0; lane < 4; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A tridiagonal matrix and the reflections that made it: row k of the input keeps the k-th one.
struct Tridiagonal {
  std::vector<double> diagonal, beside, scales;
};

// Turns row k beyond the diagonal into a reflection; returns the element left beside the diagonal.
double Reflect(double* row, uint64_t count, double& scale) {
  const double norm = std::sqrt(DotProduct(row, row, count));
  scale = 0;
  if (norm == 0) return 0;
  const double left = row[0] > 0 ? -norm : norm;
  row[0] -= left;
  scale = 2 / DotProduct(row, row, count);
  return left;
}

Tridiagonal Tridiagonalise(std::vector<double>& matrix, uint64_t n, ThreadPool& pool) {
  Tridiagonal out{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
  std::vector<double> change(n);
  for (uint64_t k = 0; k + 1 < n; ++k) {
    const uint64_t first = k + 1, count = n - first;
    double* v = &matrix[k * n + first];
    out.diagonal[k] = matrix[k * n + k];
    out.beside[k] = Reflect(v, count, out.scales[k]);
    const double scale = out.scales[k];
    if (scale == 0) continue;
    ForBlocks(pool, count, kRowsAtOnce, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i)
        change[i] = scale * DotProduct(&matrix[(first + i) * n + first], v, count);
    });
    const double half = scale / 2 * DotProduct(change.data(), v, count);
    for (uint64_t i = 0; i < count; ++i) change[i] -= half * v[i];
    ForBlocks(pool, count, kRowsAtOnce, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) {
        double* row = &matrix[(first + i) * n + first];
        for (uint64_t j = 0; j < count; ++j) row[j] -= v[i] * change[j] + change[i] * v[j];
      }
    });
  }
  out.diagonal[n - 1] = matrix[n * n - 1];
  return out;
}

struct Rotation {
  uint64_t row;  // the rotation of this row and the next one
  double c, s;
};

// Does one sweep from `end` up to `begin`; `rotations` gets its rotations.
void Sweep(Tridiagonal& t, uint64_t begin, uint64_t end, std::vector<Rotation>& rotations) {
  std::vector<double>&d = t.diagonal, &e = t.beside;
  double g = (d[begin + 1] - d[begin]) / (2 * e[begin]);
  double r = std::hypot(g, 1.0);
  g = d[end] - d[begin] + e[begin] / (g + std::copysign(r, g));
  double s = 1, c = 1, p = 0;
  for (uint64_t i = end; i-- > begin;) {
    double f = s * e[i];
    const double b = c * e[i];
    r = std::hypot(f, g);
    e[i + 1] = r;
    if (r == 0) {  // an eigenvalue was found before the sweep ended
      d[i + 1] -= p;
      e[end] = 0;
      return;
    }
    s = f / r;
    c = g / r;
    g = d[i + 1] - p;
    r = (d[i] - g) * s + 2 * c * b;
    p = s * r;
    d[i + 1] = g + p;
    g = c * r - b;
    rotations.push_back({i, c, s});
  }
  d[begin] -= p;
  e[begin] = g;
  e[end] = 0;
}

void Rotate(const std::vector<Rotation>& rotations, uint64_t n, std::vector<double>& vectors,
            ThreadPool& pool) {
  ForBlocks(pool, n, kColumnsAtOnce, [&](uint64_t begin, uint64_t end) {
    for (const Rotation& turn : rotations) {
      double *low = &vectors[turn.row * n], *high = low + n;
      for (uint64_t i = begin; i < end; ++i) {
        const double above = high[i];
        high[i] = turn.s * low[i] + turn.c * above;
        low[i] = turn.c * low[i] - turn.s * above;
      }
    }
  });
}

// Leaves eigenvalues on the diagonal, and returns eigenvectors of the tridiagonal matrix in rows.
std::vector<double> Diagonalise(Tridiagonal& t, uint64_t n, ThreadPool& pool) {
  std::vector<double> vectors(n * n);
  for (uint64_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  std::vector<Rotation> rotations;
  // Elements below the rounding of the largest one are noise of the sums.
  double largest = 0;
  for (uint64_t i = 0; i < n; ++i)
    largest = std::max(largest, std::fabs(t.diagonal[i]) + std::fabs(t.beside[i]));
  constexpr double kRounding = std::numeric_limits<double>::epsilon();
  for (uint64_t begin = 0; begin < n; ++begin) {
    for (int sweeps = 0;; ++sweeps) {
      uint64_t end = begin;
      for (; end + 1 < n; ++end) {
        const double around = std::fabs(t.diagonal[end]) + std::fabs(t.diagonal[end + 1]);
        if (std::fabs(t.beside[end]) <= kRounding * std::max(around, kNoise * largest)) break;
      }
      if (end == begin) break;
      KV_ASSERT(sweeps < kMostSweeps);
      rotations.clear();
      Sweep(t, begin, end, rotations);
      Rotate(rotations, n, vectors, pool);
    }
  }
  return vectors;
}

// Applies the reflections to a vector, the last one first.
void UndoReflections(const std::vector<double>& reflections, const Tridiagonal& t, uint64_t n,
                     double* vector) {
  for (uint64_t k = n - 1; k-- > 0;) {
    const double* v = &reflections[k * n + k + 1];
    double* part = vector + k + 1;
    const double by = t.scales[k] * DotProduct(v, part, n - k - 1);
    for (uint64_t i = 0; i < n - k - 1; ++i) part[i] -= by * v[i];
  }
}

}  // namespace

Eigen SymmetricEigen(std::vector<double> matrix, uint64_t n, ThreadPool& pool) {
  KV_ASSERT(n > 0 && matrix.size() == n * n);
  Tridiagonal t = Tridiagonalise(matrix, n, pool);
  std::vector<double> vectors = Diagonalise(t, n, pool);
  std::vector<uint64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint64_t a, uint64_t b) { return t.diagonal[a] > t.diagonal[b]; });
  Eigen eigen{std::vector<double>(n), std::vector<double>(n * n)};
  ForBlocks(pool, n, 1, [&](uint64_t i, uint64_t) {
    double* vector = &vectors[order[i] * n];
    UndoReflections(matrix, t, n, vector);
    const double* largest = std::max_element(
        vector, vector + n, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    const double sign = *largest < 0 ? -1 : 1;
    for (uint64_t j = 0; j < n; ++j) eigen.vectors[i * n + j] = sign * vector[j];
    eigen.values[i] = t.diagonal[order[i]];
  });
  return eigen;
}

}  // namespace kv::transform
