// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Attention scores without materialised probabilities. Keys stay in their stored type and are
// widened in registers (one query) or panel by panel (tiles). The one-query kernels add in an order
// that does not depend on vector width: 16 virtual lanes, element i on lane i % 16, folded as
// i + 8, i + 4, i + 2, i + 1, products and sums rounded separately. They and AddTileBlockSums are
// equal on every SIMD target, to the bit, to kv::ref below. TileLogits multiplies through
// one-threaded BLAS, which chooses its own kernels by CPU: equal for every SIMD target and thread
// count on one machine.

enum class KeyType { kF16, kBF16, kF32 };

// Rows of `dim` values, `stride` bytes apart, at any alignment.
struct KeyRows {
  const std::byte* data = nullptr;
  KeyType type = KeyType::kF16;
  size_t stride = 0;
  size_t count = 0;
  size_t dim = 0;
};

// logits[i] = scale * (query . key i)
void QueryLogits(const float* query, const KeyRows& keys, float scale, float* logits) noexcept;

// The largest value; NaNs are passed over; -infinity of nothing.
float RowMaximum(const float* row, size_t count) noexcept;
// row[i] = exp(row[i] - maximum) for values up to the maximum. Within 2 ulp; 0 below e^-87; NaN
// stays.
void ExpRow(float* row, size_t count, float maximum) noexcept;
// sums[b] = sum of row[b * block ... ]; returns the sum of the sums, in double (of blocks of 64
// when `block` is 1). `sums` may be `row`.
double BlockSums(const float* row, size_t count, size_t block, float* sums) noexcept;
// Both at once, without writing the weights back when `block` is a multiple of 16.
double ExpBlockSums(float* row, size_t count, float maximum, size_t block, float* sums) noexcept;
// sums[i] += weight * row[i]
void AddScaled(const float* row, size_t count, float weight, float* sums) noexcept;

// How an engine weighs the keys of one query before it sums them per block.
enum class WeightRule {
  kSoftmax,     // normalised over all keys
  kFlashLocal,  // exp(s - running maximum over 64-key sub-blocks), neither rescaled nor normalised
};
// Logits to weights, in place. Masked keys are -infinity; a row that sees nothing becomes 0.
void WeighRow(float* row, size_t count, WeightRule rule) noexcept;
// sums[i / block] += weights[i], key by key in float, as the engine's loop adds.
void AddInOrder(const float* weights, size_t count, size_t block, float* sums) noexcept;

// Consecutive query rows of one head over one kv head's keys: row r sees the first visible + r
// keys.
struct ScoreTile {
  const float* queries = nullptr;
  size_t query_stride = 0;  // in floats
  size_t rows = 0;
  KeyRows keys;
  size_t visible = 0;
  float scale = 1.0f;

  size_t columns() const {
    return visible + rows - 1 < keys.count ? visible + rows - 1 : keys.count;
  }
};
// The most rows of a tile.
inline constexpr size_t kTileRows = 128;

// Floats of scratch that TileLogits needs.
size_t TileScratchFloats(size_t dim) noexcept;
// logits[r * stride + j] for all columns() of the tile of up to kTileRows rows; what a row does not
// see is left undefined.
void TileLogits(const ScoreTile& tile, float* logits, size_t stride, float* scratch) noexcept;
// sums += weight * softmax(row), summed per block; `row` holds logits and is used up.
void AddRowBlockSums(float* row, size_t count, size_t block, double weight, float* sums) noexcept;

// The same for all rows of a tile at once, weighted by row_weights[r] (1 if null), without BLAS: 64
// rows stand side by side in vector lanes, so that maxima, exponentials and block sums need no
// shuffle. Products are fused and added in the order of the dimensions; equal to kv::ref on every
// SIMD target and machine, to the bit.
void AddTileBlockSums(const ScoreTile& tile, size_t block, const float* row_weights, float* scratch,
                      float* sums) noexcept;
inline constexpr size_t kSubTileRows = 64;
// Floats of scratch that it needs.
size_t BlockSumScratchFloats(size_t dim, size_t columns) noexcept;

namespace ref {

float Exp(float x) noexcept;  // of x <= 0
void QueryLogits(const float* query, const KeyRows& keys, float scale, float* logits) noexcept;
float RowMaximum(const float* row, size_t count) noexcept;
void ExpRow(float* row, size_t count, float maximum) noexcept;
double BlockSums(const float* row, size_t count, size_t block, float* sums) noexcept;
double ExpBlockSums(float* row, size_t count, float maximum, size_t block, float* sums) noexcept;
void AddScaled(const float* row, size_t count, float weight, float* sums) noexcept;
void AddTileBlockSums(const ScoreTile& tile, size_t block, const float* row_weights,
                      float* sums) noexcept;

}  // namespace ref
}  // namespace kv
