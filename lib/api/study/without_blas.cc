// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/study/dense/score.h"

// Replaces lib/study/dense/score_tile.cc, which multiplies with the BLAS: policies need it only for
// weights that are not a softmax, which kvtool.h does not have.
namespace kv {

size_t TileScratchFloats(size_t) noexcept { return 0; }

void TileLogits(const ScoreTile& tile, float* logits, size_t stride, float*) noexcept {
  for (size_t row = 0; row < tile.rows; ++row) {
    KeyRows keys = tile.keys;
    keys.count = std::min(tile.visible + row, keys.count);
    QueryLogits(tile.queries + row * tile.query_stride, keys, tile.scale, logits + row * stride);
  }
}

}  // namespace kv
