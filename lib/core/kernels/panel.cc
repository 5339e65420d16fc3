// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Tiles of a matrix product whose sums stay in registers. Unlike a BLAS it neither fuses nor
// reorders additions, because archives depend on the sums.

#include "lib/core/kernels/panel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/panel.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DPanel = hn::CappedTag<float, kPanelLanes>;
using VPanel = hn::Vec<DPanel>;
// Number of vectors that make kPanelLanes floats, but at most two, so that a tile fits the
// registers.
constexpr size_t kPanelVectors = hn::MaxLanes(DPanel()) >= kPanelLanes ? 1 : 2;

// The operations are not fused, because archives depend on every bit.
template <bool kMinus>
HWY_INLINE VPanel Take(VPanel sum, VPanel a, VPanel b) {
  const auto product = hn::Mul(a, b);
  return kMinus ? hn::Sub(sum, product) : hn::Add(sum, product);
}

// Computes a tile of kRows rows and kVectors vectors. Its sums stay in registers from the first
// step to the last, which saves loading and storing the result for every step.
template <bool kMinus, size_t kRows, size_t kVectors>
HWY_INLINE void Tile(float* out, size_t stride, const PanelFactors& f, size_t row, size_t column) {
  const DPanel d;
  const size_t lanes = hn::Lanes(d);
  VPanel sums[kRows][kVectors];
  float* to = out + row * stride + column;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::LoadU(d, to + r * stride + v * lanes);
  }
  const float* a = f.a + static_cast<ptrdiff_t>(row) * f.a_row;
  const float* b = f.b + column;
  for (size_t step = 0; step < f.steps; ++step) {
    VPanel right[kVectors];
    for (size_t v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b + v * lanes);
    for (size_t r = 0; r < kRows; ++r) {
      const auto left = hn::Set(d, a[static_cast<ptrdiff_t>(r) * f.a_row]);
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = Take<kMinus>(sums[r][v], left, right[v]);
    }
    a += f.a_step;
    b += f.b_step;
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, to + r * stride + v * lanes);
  }
}

template <bool kMinus>
void Panel(float* out, size_t stride, size_t rows, size_t columns, const PanelFactors& f) {
  // Six rows share the loads of b; single rows take four times the width to have as many
  // independent sums.
  constexpr size_t kTall = 6, kWide = 4 * kPanelVectors;
  const size_t step = kPanelVectors * hn::Lanes(DPanel());
  size_t row = 0;
  for (; row + kTall <= rows; row += kTall) {
    for (size_t column = 0; column < columns; column += step)
      Tile<kMinus, kTall, kPanelVectors>(out, stride, f, row, column);
  }
  for (; row < rows; ++row) {
    size_t column = 0;
    for (; column + 4 * step <= columns; column += 4 * step)
      Tile<kMinus, 1, kWide>(out, stride, f, row, column);
    for (; column < columns; column += step)
      Tile<kMinus, 1, kPanelVectors>(out, stride, f, row, column);
  }
}

void Add(float* out, size_t stride, size_t rows, size_t columns, const PanelFactors& f) {
  Panel<false>(out, stride, rows, columns, f);
}
void Subtract(float* out, size_t stride, size_t rows, size_t columns, const PanelFactors& f) {
  Panel<true>(out, stride, rows, columns, f);
}

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Add);
HWY_EXPORT(Subtract);

void PanelAdd(float* out, size_t stride, size_t rows, size_t columns,
              const PanelFactors& factors) noexcept {
  HWY_DYNAMIC_DISPATCH(Add)(out, stride, rows, columns, factors);
}
void PanelSubtract(float* out, size_t stride, size_t rows, size_t columns,
                   const PanelFactors& factors) noexcept {
  HWY_DYNAMIC_DISPATCH(Subtract)(out, stride, rows, columns, factors);
}

namespace ref {
namespace {

template <typename Take>
void EachProduct(float* out, size_t stride, size_t rows, size_t columns, const PanelFactors& f,
                 Take take) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      float& sum = out[row * stride + column];
      for (size_t i = 0; i < f.steps; ++i) {
        const auto step = static_cast<ptrdiff_t>(i);
        sum = take(sum, f.a[step * f.a_step + static_cast<ptrdiff_t>(row) * f.a_row] *
                            f.b[step * f.b_step + static_cast<ptrdiff_t>(column)]);
      }
    }
  }
}

}  // namespace

void PanelAdd(float* out, size_t stride, size_t rows, size_t columns,
              const PanelFactors& factors) noexcept {
  EachProduct(out, stride, rows, columns, factors,
              [](float sum, float more) { return sum + more; });
}
void PanelSubtract(float* out, size_t stride, size_t rows, size_t columns,
                   const PanelFactors& factors) noexcept {
  EachProduct(out, stride, rows, columns, factors,
              [](float sum, float less) { return sum - less; });
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
