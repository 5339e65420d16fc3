// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/engines/cacheblend/cache_pair.h"

namespace kv::blend {

// How far the chunks' keys (or values) of one layer are from the full run's.
struct TensorDeviation {
  std::vector<double> tokens;  // sum over heads and dims of (full - old)^2
  double sum = 0, full_sum = 0;
  // sqrt(deviation / sum of full^2) per token; tokens that are not finite are left out
  double rel_mean = 0, rel_p50 = 0, rel_p90 = 0, rel_p99 = 0, rel_max = 0;
  std::vector<double> chunk_means;  // of the relative deviation
  uint64_t nonfinite = 0;

  double relative() const;  // of the whole tensor
};

struct LayerDeviation {
  uint32_t layer = 0;
  TensorDeviation v, k;
};

// One pass over both caches, layer by layer. The same bits for every number of threads and every
// SIMD target.
std::vector<LayerDeviation> MeasureDeviations(const CachePair& caches, ThreadPool& pool,
                                              Progress* progress);

// Scores of one layer's values in a 16-bit dtype, for tokens [0, count).
std::vector<float> ScoresInDtype(const CachePair& caches, size_t layer, uint64_t count, DType dtype,
                                 ThreadPool& pool);

// Relative error of a layer's keys if they are turned a second time, which is what the original
// does when one object is used for two runs. 0 where keys need no turning.
double DoubleRotationError(const CachePair& caches, size_t layer, ThreadPool& pool);

}  // namespace kv::blend
