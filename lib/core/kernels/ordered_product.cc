// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/ordered_product.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/ordered_product.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Some columns of this many vectors are copied at once, so that they are adjacent in memory: with
// a basis of 5,760 features each vector would otherwise be in a page of its own.
constexpr size_t kPiece = 256;
constexpr size_t kTogether = 4;  // rows that share each loaded vector
constexpr size_t kRegs = 2;      // registers of columns

using D = hn::CappedTag<float, 16>;
constexpr size_t kWidth = kRegs * hn::MaxLanes(D());

// Adds a piece of copied vectors, [count][kWidth], to the sums of kRows rows.
template <size_t kRows>
HWY_INLINE void AddPiece(const float* factors, size_t factor_stride, size_t count,
                         const float* piece, float* sums, size_t sum_stride) {
  const D d;
  constexpr size_t kLanes = hn::MaxLanes(D());
  hn::Vec<D> sum[kRows][kRegs];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kRegs; ++v) sum[r][v] = hn::LoadU(d, sums + r * sum_stride + v * kLanes);
  }
  for (size_t i = 0; i < count; ++i, piece += kWidth) {
    hn::Vec<D> vector[kRegs];
    for (size_t v = 0; v < kRegs; ++v) vector[v] = hn::LoadU(d, piece + v * kLanes);
    for (size_t r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, factors[r * factor_stride + i]);
      for (size_t v = 0; v < kRegs; ++v) sum[r][v] = hn::Add(sum[r][v], hn::Mul(factor, vector[v]));
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kRegs; ++v) hn::StoreU(sum[r][v], d, sums + r * sum_stride + v * kLanes);
  }
}

void AddProducts(const float* factors, size_t rows, size_t count, const float* vectors,
                 size_t stride, size_t columns, float* sums) {
  float piece[kPiece * kWidth];
  size_t column = 0;
  for (; column + kWidth <= columns; column += kWidth) {
    for (size_t first = 0; first < count; first += kPiece) {
      const size_t many = std::min(kPiece, count - first);
      for (size_t i = 0; i < many; ++i) {
        std::memcpy(piece + i * kWidth, vectors + (first + i) * stride + column,
                    kWidth * sizeof(float));
      }
      size_t row = 0;
      for (; row + kTogether <= rows; row += kTogether) {
        AddPiece<kTogether>(factors + row * count + first, count, many, piece,
                            sums + row * columns + column, columns);
      }
      for (; row < rows; ++row) {
        AddPiece<1>(factors + row * count + first, count, many, piece,
                    sums + row * columns + column, columns);
      }
    }
  }
  for (; column < columns; ++column) {
    for (size_t row = 0; row < rows; ++row) {
      float sum = sums[row * columns + column];
      for (size_t i = 0; i < count; ++i)
        sum += factors[row * count + i] * vectors[i * stride + column];
      sums[row * columns + column] = sum;
    }
  }
}

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(AddProducts);

void AddProducts(const float* factors, size_t rows, size_t count, const float* vectors,
                 size_t stride, size_t columns, float* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(AddProducts)(factors, rows, count, vectors, stride, columns, sums);
}

namespace ref {

void AddProducts(const float* factors, size_t rows, size_t count, const float* vectors,
                 size_t stride, size_t columns, float* sums) noexcept {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      float sum = sums[row * columns + column];
      for (size_t i = 0; i < count; ++i)
        sum += factors[row * count + i] * vectors[i * stride + column];
      sums[row * columns + column] = sum;
    }
  }
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
