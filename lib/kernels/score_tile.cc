// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "lib/kernels/convert.h"
#include "lib/kernels/score.h"

namespace kv {
namespace {

// Keys per panel: 256 x 128 floats are widened into 128 KiB, which stays in L2 beside the queries.
constexpr size_t kPanelKeys = 256;
constexpr size_t kFlashKeys = 64;

// Threads are ours (heads over threads), so BLAS must not start its own.
void OneBlasThread() {
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
}

void WidenKeys(const KeyRows& keys, size_t begin, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) {
    const std::byte* row = keys.data + (begin + i) * keys.stride;
    float* to = out + i * keys.dim;
    switch (keys.type) {
      case KeyType::kF16:
        HalfToFloat(row, to, keys.dim);
        break;
      case KeyType::kBF16:
        BFloatToFloat(row, to, keys.dim);
        break;
      case KeyType::kF32:
        std::memcpy(to, row, keys.dim * sizeof(float));
        break;
    }
  }
}

}  // namespace

size_t TileScratchFloats(size_t dim) noexcept { return kPanelKeys * dim; }

void TileLogits(const ScoreTile& tile, float* logits, size_t stride, float* scratch) noexcept {
  OneBlasThread();
  const size_t columns = tile.columns(), dim = tile.keys.dim;
  for (size_t begin = 0; begin < columns; begin += kPanelKeys) {
    const size_t count = std::min(kPanelKeys, columns - begin);
    // Rows that see nothing of this panel are left out.
    const size_t first = begin < tile.visible ? 0 : begin - tile.visible + 1;
    WidenKeys(tile.keys, begin, count, scratch);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(tile.rows - first),
                static_cast<int>(count), static_cast<int>(dim), tile.scale,
                tile.queries + first * tile.query_stride, static_cast<int>(tile.query_stride),
                scratch, static_cast<int>(dim), 0.0f, logits + first * stride + begin,
                static_cast<int>(stride));
  }
}

void AddTileBlockSums(const ScoreTile& tile, size_t block, const float* row_weights, float* logits,
                      float* scratch, double* sums) noexcept {
  const size_t columns = tile.columns();
  TileLogits(tile, logits, columns, scratch);
  for (size_t r = 0; r < tile.rows; ++r) {
    float* row = logits + r * columns;
    const size_t seen = std::min(columns, tile.visible + r);
    const size_t blocks = (seen + block - 1) / block;
    // Block b is read before its sum lands at row[b]: in place, since b <= b * block.
    const double total = ExpBlockSums(row, seen, RowMaximum(row, seen), block, row);
    const double weight = (row_weights == nullptr ? 1.0 : row_weights[r]) / total;
    for (size_t b = 0; b < blocks; ++b) sums[b] += weight * row[b];
  }
}

void AddBlockWeights(float* logits, size_t count, size_t block, WeightRule rule,
                     float* sums) noexcept {
  if (rule == WeightRule::kSoftmax) {
    ExpRow(logits, count, RowMaximum(logits, count));
    float total = 0;
    for (size_t i = 0; i < count; ++i) total += logits[i];
    total += 1e-20f;
    for (size_t i = 0; i < count; ++i) sums[i / block] += logits[i] / total;
    return;
  }
  float maximum = -INFINITY;
  for (size_t begin = 0; begin < count; begin += kFlashKeys) {
    const size_t keys = std::min(kFlashKeys, count - begin);
    maximum = std::max(maximum, RowMaximum(logits + begin, keys));
    ExpRow(logits + begin, keys, maximum);
    for (size_t i = begin; i < begin + keys; ++i) sums[i / block] += logits[i];
  }
}

}  // namespace kv
