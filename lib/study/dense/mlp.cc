// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Runs three linear layers tile by tile: floats through the BLAS, 16-bit types in double with one
// rounding per layer.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/study/dense/mlp.cc"
#include "lib/study/dense/mlp.h"

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void AddBiasRows(float* rows, uint64_t stride, uint64_t count, uint64_t columns, const float* bias,
                 bool relu) {
  const hn::ScalableTag<float> d;
  const auto zero = hn::Zero(d);
  const uint64_t lanes = hn::Lanes(d);
  for (uint64_t r = 0; r < count; ++r) {
    float* row = rows + r * stride;
    uint64_t i = 0;
    for (; i + lanes <= columns; i += lanes) {
      auto v = hn::LoadU(d, row + i);
      if (bias != nullptr) v = hn::Add(v, hn::LoadU(d, bias + i));
      if (relu) v = hn::IfThenElse(hn::Lt(v, zero), zero, v);
      hn::StoreU(v, d, row + i);
    }
    for (; i < columns; ++i) {
      float v = row[i];
      if (bias != nullptr) v += bias[i];
      row[i] = relu && v < 0 ? 0.0f : v;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"
#include "lib/core/kernels/convert.h"
#include "lib/study/dense/gemm.h"

namespace kv {

HWY_EXPORT(AddBiasRows);

void AddBias(float* rows, uint64_t stride, uint64_t count, uint64_t columns, const float* bias,
             bool relu) noexcept {
  HWY_DYNAMIC_DISPATCH(AddBiasRows)(rows, stride, count, columns, bias, relu);
}

namespace {

// The activations of a tile should stay in a 1 MiB L2 cache (the input is read once, by packing);
// fewer rows than this would spend the time on packing the weights.
constexpr uint64_t kTileBytes = uint64_t{1} << 20;
// Bounds of a tile's rows, whatever the width of the layers.
constexpr uint64_t kLeastTileRows = 128, kMostTileRows = 1024;

const float* BiasOrNull(const MlpLinear& linear) {
  return linear.bias.empty() ? nullptr : linear.bias.data();
}

// Rounds sums to the type: adds the bias, rounds once by way of float, and applies ReLU.
void RoundRows(const std::vector<double>& sums, const MlpLinear& linear, uint64_t rows,
               MlpNumbers numbers, bool relu, float* to, uint64_t to_stride,
               std::vector<std::byte>& halves) {
  const uint64_t columns = linear.out;
  halves.resize(2 * columns);
  for (uint64_t r = 0; r < rows; ++r) {
    float* row = to + r * to_stride;
    for (uint64_t i = 0; i < columns; ++i) {
      const double bias = linear.bias.empty() ? 0.0 : static_cast<double>(linear.bias[i]);
      row[i] = static_cast<float>(sums[r * columns + i] + bias);
    }
    if (numbers == MlpNumbers::kF16) {
      FloatToHalf(row, halves.data(), columns);
      HalfToFloat(halves.data(), row, columns);
    } else {
      FloatToBFloat(row, halves.data(), columns);
      BFloatToFloat(halves.data(), row, columns);
    }
    if (relu) AddBias(row, columns, 1, columns, nullptr, true);
  }
}

}  // namespace

Mlp::Mlp(std::array<MlpLinear, 3> linears, MlpNumbers numbers)
    : linears_(std::move(linears)), numbers_(numbers) {
  uint64_t floats_per_row = 0;
  for (size_t i = 0; i < linears_.size(); ++i) {
    const MlpLinear& linear = linears_[i];
    KV_ASSERT(linear.weight.size() == uint64_t{linear.in} * linear.out);
    KV_ASSERT(linear.bias.empty() || linear.bias.size() == linear.out);
    KV_ASSERT(i == 0 || linear.in == linears_[i - 1].out);
    if (numbers_ != MlpNumbers::kF32) wide_[i].assign(linear.weight.begin(), linear.weight.end());
    floats_per_row += linear.out;
  }
  const uint64_t bytes_per_row = floats_per_row * (numbers_ == MlpNumbers::kF32 ? 4 : 12);
  tile_rows_ = std::clamp(kTileBytes / bytes_per_row, kLeastTileRows, kMostTileRows);
}

void Mlp::RunTile(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
                  Scratch& scratch) const {
  if (numbers_ == MlpNumbers::kF32) {
    RunFloats(x, x_stride, rows, y, y_stride, scratch);
  } else {
    RunHalves(x, x_stride, rows, y, y_stride, scratch);
  }
}

void Mlp::RunFloats(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
                    Scratch& scratch) const {
  const float* from = x;
  uint64_t from_stride = x_stride;
  for (size_t i = 0; i < linears_.size(); ++i) {
    const MlpLinear& linear = linears_[i];
    const bool last = i + 1 == linears_.size();
    if (!last) scratch.floats[i].resize(rows * linear.out);
    float* to = last ? y : scratch.floats[i].data();
    const uint64_t to_stride = last ? y_stride : linear.out;
    GemmNT(from, from_stride, linear.weight.data(), linear.in, to, to_stride, rows, linear.out,
           linear.in);
    if (!last || !linear.bias.empty()) {
      AddBias(to, to_stride, rows, linear.out, BiasOrNull(linear), !last);
    }
    from = to;
    from_stride = to_stride;
  }
}

void Mlp::RunHalves(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
                    Scratch& scratch) const {
  const float* from = x;
  uint64_t from_stride = x_stride;
  for (size_t i = 0; i < linears_.size(); ++i) {
    const MlpLinear& linear = linears_[i];
    const bool last = i + 1 == linears_.size();
    std::vector<double>& wide = scratch.doubles[0];
    std::vector<double>& sums = scratch.doubles[1];
    wide.resize(rows * linear.in);
    sums.resize(rows * linear.out);
    for (uint64_t r = 0; r < rows; ++r) {
      std::copy_n(from + r * from_stride, linear.in, &wide[r * linear.in]);
    }
    GemmNT(wide.data(), linear.in, wide_[i].data(), linear.in, sums.data(), linear.out, rows,
           linear.out, linear.in);
    if (!last) scratch.floats[0].resize(rows * linear.out);
    float* to = last ? y : scratch.floats[0].data();
    const uint64_t to_stride = last ? y_stride : linear.out;
    RoundRows(sums, linear, rows, numbers_, !last, to, to_stride, scratch.halves);
    from = to;
    from_stride = to_stride;
  }
}

namespace ref {

void AddBias(float* rows, uint64_t stride, uint64_t count, uint64_t columns, const float* bias,
             bool relu) noexcept {
  for (uint64_t r = 0; r < count; ++r) {
    for (uint64_t i = 0; i < columns; ++i) {
      float& v = rows[r * stride + i];
      if (bias != nullptr) v += bias[i];
      if (relu && v < 0) v = 0;
    }
  }
}

void RunMlp(const std::array<MlpLinear, 3>& linears, MlpNumbers numbers, const float* x, float* y) {
  std::vector<float> from(x, x + linears[0].in), to;
  for (size_t i = 0; i < linears.size(); ++i) {
    const MlpLinear& linear = linears[i];
    to.resize(linear.out);
    for (uint64_t o = 0; o < linear.out; ++o) {
      double sum = Dot(&linear.weight[o * linear.in], 1, from.data(), 1, linear.in);
      if (!linear.bias.empty()) sum += static_cast<double>(linear.bias[o]);
      float value = static_cast<float>(sum);
      if (numbers == MlpNumbers::kF16) value = F16ToF32(F32ToF16(value));
      if (numbers == MlpNumbers::kBF16) value = BF16ToF32(F32ToBF16(value));
      to[o] = i + 1 < linears.size() && value < 0 ? 0 : value;
    }
    from.swap(to);
  }
  std::copy(from.begin(), from.end(), y);
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
