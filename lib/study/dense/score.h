// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Attention scores without a matrix of probabilities. Keys stay in their stored type and are
// widened in registers (one query) or panel by panel (tiles). The one-query kernels add in an order
// that does not depend on the vector width: element i is added on virtual lane i % 16, lanes are
// folded as i + 8, i + 4, i + 2, i + 1, and products and sums are rounded separately. These kernels
// and AddTileBlockSums have the bits of kv::ref below on every SIMD target. TileLogits multiplies
// through the BLAS, which chooses its kernels by the CPU: its results are the same for every SIMD
// target and number of threads on one machine, but not on every machine.
//
// score.cc has the one-query kernels, score_tile.cc TileLogits, score_weights.cc the loops over
// weights, tile_sums.cc AddTileBlockSums, and score_reference.cc the references.

enum class KeyType { kF16, kBF16, kF32 };

// `count` rows of `dim` values, `stride` bytes apart, at any alignment.
struct KeyRows {
  const std::byte* data = nullptr;
  KeyType type = KeyType::kF16;
  size_t stride = 0;
  size_t count = 0;
  size_t dim = 0;
};

// Writes keys [begin, begin + count) as floats, [key][dim].
void WidenKeys(const KeyRows& keys, size_t begin, size_t count, float* out) noexcept;
// Computes logits[i] = scale * (query . key i).
void QueryLogits(const float* query, const KeyRows& keys, float scale, float* logits) noexcept;

// Returns the largest value, passing over NaNs; -infinity if there is none.
float RowMaximum(const float* row, size_t count) noexcept;
// Computes row[i] = exp(row[i] - maximum), for values up to `maximum`. The error is within 2 ulp;
// results below e^-87 are 0; NaN stays NaN.
void ExpRow(float* row, size_t count, float maximum) noexcept;
// Writes the sum of each `block` values to sums[b] and returns the sum of these sums in double (of
// sums of 64 values if `block` is 1). `sums` may be `row`.
double BlockSums(const float* row, size_t count, size_t block, float* sums) noexcept;
// Performs ExpRow and BlockSums at once. The contents of `row` are undefined afterwards.
double ExpBlockSums(float* row, size_t count, float maximum, size_t block, float* sums) noexcept;
// Adds weight * row[i] to sums[i].
void AddScaled(const float* row, size_t count, float weight, float* sums) noexcept;

// The rule by which an engine weighs the keys of one query before it sums the weights per block.
enum class WeightRule {
  kSoftmax,  // normalised over all keys
  // exp(s - m), where m is the running maximum over sub-blocks of 64 keys; earlier weights are not
  // rescaled when m grows, and nothing is normalised.
  kFlashLocal,
};
// Turns logits into weights in place. Masked keys have a logit of -infinity; a row with nothing but
// masked keys becomes all zero.
void WeighRow(float* row, size_t count, WeightRule rule) noexcept;
// Adds weights[i] to sums[i / block], key by key in float, as the engine's loop does.
void AddInOrder(const float* weights, size_t count, size_t block, float* sums) noexcept;

// Consecutive query rows of one head and the keys of its kv head. Row r sees the first `visible` +
// r keys.
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
// The largest number of rows of a tile.
inline constexpr size_t kTileRows = 128;

// Returns how many floats of scratch TileLogits needs.
size_t TileScratchFloats(size_t dim) noexcept;
// Writes logits[r * stride + j] for all columns() of a tile of up to kTileRows rows. Logits of keys
// that a row does not see have no defined value.
void TileLogits(const ScoreTile& tile, float* logits, size_t stride, float* scratch) noexcept;
// Adds weight * softmax(row) to `sums`, summed per block. `row` holds logits and is overwritten.
void AddRowBlockSums(float* row, size_t count, size_t block, double weight, float* sums) noexcept;

// Adds the block sums of all rows of a tile at once, each weighted by row_weights[r] (1 if null),
// without the BLAS. 64 rows lie side by side in vector lanes, so that maxima, exponentials and
// block sums need no shuffles. Products are fused and added in the order of the dimensions. The
// results have the bits of kv::ref on every SIMD target and every machine.
void AddTileBlockSums(const ScoreTile& tile, size_t block, const float* row_weights, float* scratch,
                      float* sums) noexcept;
inline constexpr size_t kSubTileRows = 64;
// Returns how many floats of scratch AddTileBlockSums needs.
size_t BlockSumScratchFloats(size_t dim, size_t columns) noexcept;

namespace ref {

float Exp(float x) noexcept;  // x <= 0
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
