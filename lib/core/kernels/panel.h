// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

// Adds a product of matrices to a matrix, or subtracts it: the bulk of a regression with hundreds
// of taps. Each element takes its products one by one, in the order of the steps, none fused,
// because archives depend on every bit.
namespace kv {

// Columns are padded to a multiple of this, so that tiles have no tail.
constexpr size_t kPanelLanes = 16;
constexpr size_t PaddedToPanel(size_t columns) {
  return (columns + kPanelLanes - 1) / kPanelLanes * kPanelLanes;
}

// Factors a[step][row] and b[step][column]: the addresses of the first step, and the distances
// between steps and rows.
struct PanelFactors {
  const float* a = nullptr;
  ptrdiff_t a_step = 0, a_row = 0;
  const float* b = nullptr;
  ptrdiff_t b_step = 0;  // the columns of b are contiguous
  size_t steps = 0;
};

// Computes out[row * stride + column] += a[step][row] * b[step][column], step by step. `columns`
// must be a multiple of kPanelLanes.
void PanelAdd(float* out, size_t stride, size_t rows, size_t columns,
              const PanelFactors& factors) noexcept;
// Does as PanelAdd, with -=.
void PanelSubtract(float* out, size_t stride, size_t rows, size_t columns,
                   const PanelFactors& factors) noexcept;

namespace ref {
void PanelAdd(float* out, size_t stride, size_t rows, size_t columns,
              const PanelFactors& factors) noexcept;
void PanelSubtract(float* out, size_t stride, size_t rows, size_t columns,
                   const PanelFactors& factors) noexcept;
}  // namespace ref

}  // namespace kv
