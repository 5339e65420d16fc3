// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/study/dense/gemm.h"
#include "lib/study/dense/score.h"

namespace kv {
namespace {

// Keys per panel: 1024 x 128 floats are widened into 512 KiB, which stays in L2 beside the queries;
// shorter panels cost the GEMM more than they save.
constexpr size_t kPanelKeys = 1024;

}  // namespace

size_t TileScratchFloats(size_t dim) noexcept { return (kTileRows + kPanelKeys) * dim; }

void TileLogits(const ScoreTile& tile, float* logits, size_t stride, float* scratch) noexcept {
  KV_ASSERT(tile.rows <= kTileRows);
  const size_t columns = tile.columns(), dim = tile.keys.dim;
  float* queries = scratch;
  float* panel = scratch + kTileRows * dim;
  for (size_t r = 0; r < tile.rows; ++r) {
    const float* from = tile.queries + r * tile.query_stride;
    for (size_t i = 0; i < dim; ++i) queries[r * dim + i] = from[i] * tile.scale;
  }
  for (size_t begin = 0; begin < columns; begin += kPanelKeys) {
    const size_t count = std::min(kPanelKeys, columns - begin);
    // Skips rows that see no key of this panel.
    const size_t first = begin < tile.visible ? 0 : begin - tile.visible + 1;
    WidenKeys(tile.keys, begin, count, panel);
    GemmNT(queries + first * dim, dim, panel, dim, logits + first * stride + begin, stride,
           tile.rows - first, count, dim);
  }
}

}  // namespace kv
