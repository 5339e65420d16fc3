// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <span>

#include "lib/core/base/parallel.h"
#include "lib/core/codec/profiled/regressions.h"
#include "lib/core/snapshot/snapshot.h"

// Learns the regressions of a profile from whole caches of a model. All tokens together give the
// weights by least squares; rounding them to a common share of added error makes them fit a size.
namespace kv {

struct LearntRegressions {
  Regressions regressions;
  uint64_t rows = 0, held_out = 0;  // tokens learnt from, and tokens that judge the result
  uint32_t layers_back = 0;         // number of layers before a layer that serve it
  double bits_per_weight = 0;
  // Bits per value that the forecast saves on K and V of held-out tokens: half the logarithm of the
  // ratio of variances, averaged over channels. Rows above tell codecs part of the same.
  // nullopt if there are no such tokens, and for K of a single layer.
  std::optional<double> k_saved, v_saved;
};

// Learns from caches of one model whose K and V are f16 or bf16 in all layers. The regressions take
// at most `most_bytes` of a profile. Throws kInconsistent if the caches differ in layers or rows,
// or the layers of a cache in tokens; kUnsupportedDtype for other types; and kLimit if not even the
// coarsest weights fit.
LearntRegressions LearnRegressions(std::span<const Snapshot> snapshots, uint64_t most_bytes,
                                   ThreadPool& pool);

}  // namespace kv
