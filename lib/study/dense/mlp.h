// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lib/core/base/parallel.h"

namespace kv {

// What every Linear rounds its result to, once, after its bias: the dtype of the cache.
enum class MlpNumbers : uint8_t { kF32, kF16, kBF16 };

// One Linear, y = W x + b, widened to float. W is [out][in], row-major.
struct MlpLinear {
  uint32_t in = 0, out = 0;
  std::vector<float> weight;
  std::vector<float> bias;  // empty: none
};

// Three Linears with ReLU between them, W2 relu(W1 relu(W0 x + b0) + b1) + b2, for many rows.
//
// kF32 sums in float, in the order of the BLAS. kF16 and kBF16 expect x and weights that are values
// of that type, sum in double and round once per Linear, by way of float: so their results are the
// same bits everywhere.
class Mlp {
 public:
  // The linears must chain (checked by the caller: asserted here).
  Mlp(std::array<MlpLinear, 3> linears, MlpNumbers numbers);

  uint32_t in() const { return linears_[0].in; }
  uint32_t out() const { return linears_[2].out; }
  MlpNumbers numbers() const { return numbers_; }
  const std::array<MlpLinear, 3>& linears() const { return linears_; }
  uint64_t FlopPerRow() const;

  // Rows that keep the activations of a tile in the L2 cache.
  uint64_t tile_rows() const { return tile_rows_; }

  // Activations of one tile; one per thread, reused from tile to tile.
  struct Scratch {
    std::vector<float> floats[2];
    std::vector<double> doubles[2];
    std::vector<std::byte> halves;
  };

  // One tile on the calling thread: `rows` rows of x (x_stride floats apart) to y.
  void RunTile(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
               Scratch& scratch) const;
  // Any number of rows, tile by tile over the pool. The result does not depend on the threads.
  void Run(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
           ThreadPool& pool) const;

 private:
  void RunFloats(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
                 Scratch& scratch) const;
  void RunHalves(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
                 Scratch& scratch) const;

  std::array<MlpLinear, 3> linears_;
  std::array<std::vector<double>, 3> wide_;  // weights for the 16-bit numbers
  MlpNumbers numbers_;
  uint64_t tile_rows_;
};

// Rows of `columns` floats, `stride` apart: adds the bias (may be null) and, with `relu`, replaces
// what is below zero by zero. NaN stays NaN.
void AddBias(float* rows, uint64_t stride, uint64_t count, uint64_t columns, const float* bias,
             bool relu) noexcept;

namespace ref {

void AddBias(float* rows, uint64_t stride, uint64_t count, uint64_t columns, const float* bias,
             bool relu) noexcept;

// One row through the MLP with sums in double: bit-equal for the 16-bit numbers, what kF32 must be
// near to.
void RunMlp(const std::array<MlpLinear, 3>& linears, MlpNumbers numbers, const float* x, float* y);

}  // namespace ref
}  // namespace kv
