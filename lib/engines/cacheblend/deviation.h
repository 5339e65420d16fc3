// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/engines/cacheblend/cache_pair.h"

namespace kv::blend {

// How far the chunks' keys (or values) of one layer are from the full run's.
struct TensorDeviation {
  std::vector<double> tokens;    // of each token: sum over heads and dims of (full - old)^2
  double sum = 0, full_sum = 0;  // over tokens: of these sums, and of the sums of full^2
  // Figures of the tokens' relative deviations, sqrt(sum of (full - old)^2 / sum of full^2). Tokens
  // for which that is not finite are left out and counted.
  double rel_mean = 0, rel_p50 = 0, rel_p90 = 0, rel_p99 = 0, rel_max = 0;
  std::vector<double> chunk_means;  // mean relative deviation of each chunk's tokens
  uint64_t nonfinite = 0;

  double relative() const;  // the relative deviation of the whole tensor
};

struct LayerDeviation {
  uint32_t layer = 0;
  TensorDeviation v, k;
};

// Measures all layers in one pass over both caches. The results have the same bits for every number
// of threads and every SIMD target.
std::vector<LayerDeviation> MeasureDeviations(const CachePair& caches, ThreadPool& pool,
                                              Progress* progress);

// Computes the scores (ScoreInDtype) of one layer's values in a 16-bit dtype, for tokens [0,
// count).
std::vector<float> ScoresInDtype(const CachePair& caches, size_t layer, uint64_t count, DType dtype,
                                 ThreadPool& pool);

// Returns the relative error of a layer's keys if they are rotated a second time, as the original
// does when one object is used for two runs. Returns 0 if the keys need no rotation.
double DoubleRotationError(const CachePair& caches, size_t layer, ThreadPool& pool);

// Checks by layer 0 whether the inputs belong together. Its V depends on the token alone and its K
// on the token and its position, so both must equal the full run's up to rounding. Returns a
// sentence for each tensor that deviates more; for K the sentence names the key state (KeyState)
// that would fit, if one of the usual ones does. Returns nothing if the snapshots do not begin at
// layer 0.
std::vector<std::string> DiagnoseFirstLayer(const CachePair& caches, const LayerDeviation& first);

}  // namespace kv::blend
