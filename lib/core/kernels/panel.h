// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

// Products of matrices, added to a matrix or subtracted from it: what a regression with hundreds of
// taps is made of. Each value of the result takes its products one by one, in the order of the
// steps, none fused, because archives depend on every bit.
namespace kv {

constexpr size_t kPanelLanes = 16;

// Factors a[step][row] and b[step][column]: where those of the first step are, and how far apart.
struct PanelFactors {
  const float* a = nullptr;
  ptrdiff_t a_step = 0, a_row = 0;
  const float* b = nullptr;
  ptrdiff_t b_step = 0;  // columns of b are next to each other
  size_t steps = 0;
};

// out[row * stride + column] += a[step][row] * b[step][column], step by step. `columns` is a
// multiple of kPanelLanes.
void PanelAdd(float* out, size_t stride, size_t rows, size_t columns,
              const PanelFactors& factors) noexcept;
// The same, with -=.
void PanelSubtract(float* out, size_t stride, size_t rows, size_t columns,
                   const PanelFactors& factors) noexcept;

namespace ref {
void PanelAdd(float* out, size_t stride, size_t rows, size_t columns,
              const PanelFactors& factors) noexcept;
void PanelSubtract(float* out, size_t stride, size_t rows, size_t columns,
                   const PanelFactors& factors) noexcept;
}  // namespace ref

}  // namespace kv
