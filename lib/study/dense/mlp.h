// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace kv {

// The type that every Linear rounds its result to, once, after adding the bias: the cache's dtype.
enum class MlpNumbers : uint8_t { kF32, kF16, kBF16 };

// One Linear, y = W x + b, widened to float. W is [out][in], row-major.
struct MlpLinear {
  uint32_t in = 0, out = 0;
  std::vector<float> weight;
  std::vector<float> bias;  // empty: none
};

// Three Linears with ReLU between them, W2 relu(W1 relu(W0 x + b0) + b1) + b2, for many rows.
//
// With kF32, sums are in float, in the order of the BLAS. With kF16 and kBF16, x and the weights
// must be values of that type; sums are in double and are rounded once per Linear, by way of float,
// so that the results have the same bits on every machine.
class Mlp {
 public:
  // The linears must chain: each one's `out` is the next one's `in`. The caller checks that.
  Mlp(std::array<MlpLinear, 3> linears, MlpNumbers numbers);

  uint32_t in() const { return linears_[0].in; }
  uint32_t out() const { return linears_[2].out; }
  MlpNumbers numbers() const { return numbers_; }
  const std::array<MlpLinear, 3>& linears() const { return linears_; }

  // Returns the rows of a tile, chosen so that its activations stay in the L2 cache.
  uint64_t tile_rows() const { return tile_rows_; }

  // Holds the activations of one tile. Each thread has one and reuses it from tile to tile.
  struct Scratch {
    std::vector<float> floats[2];
    std::vector<double> doubles[2];
    std::vector<std::byte> halves;
  };

  // Maps one tile of `rows` rows, x_stride floats apart, to y, on the calling thread.
  void RunTile(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
               Scratch& scratch) const;

 private:
  void RunFloats(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
                 Scratch& scratch) const;
  void RunHalves(const float* x, uint64_t x_stride, uint64_t rows, float* y, uint64_t y_stride,
                 Scratch& scratch) const;

  std::array<MlpLinear, 3> linears_;
  std::array<std::vector<double>, 3> wide_;  // weights in double, for 16-bit numbers
  MlpNumbers numbers_;
  uint64_t tile_rows_;
};

// Adds the bias, unless it is null, to `count` rows of `columns` floats that are `stride` floats
// apart. If `relu`, replaces values below zero by zero; NaN stays NaN.
void AddBias(float* rows, uint64_t stride, uint64_t count, uint64_t columns, const float* bias,
             bool relu) noexcept;

namespace ref {

void AddBias(float* rows, uint64_t stride, uint64_t count, uint64_t columns, const float* bias,
             bool relu) noexcept;

// Maps one row with sums in double. Results for 16-bit numbers must equal it to the bit; those for
// kF32 must be near to it.
void RunMlp(const std::array<MlpLinear, 3>& linears, MlpNumbers numbers, const float* x, float* y);

}  // namespace ref
}  // namespace kv
