// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <vector>

#include "lib/core/archive/transformed_chunks.h"
#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// A source whose values are approximated.
struct ApproximatedSource {
  std::vector<Bytes> files;
  std::shared_ptr<const TransformedChunks> chunks;
  uint64_t tokens = 0;        // approximated tokens
  uint64_t exact_blocks = 0;  // blocks of a group that stay exact because values are not finite
  uint64_t clipped = 0;       // coefficients beyond 16 bits
};

// Throws kUnsupportedLayout unless all values of K and V lie in the source's own bytes, where
// approximated values can replace them, and kUnsupportedDtype for types that no transform restores.
void RequireReplaceable(const Source& source, const Snapshot& snapshot);

// Sets the layers of `wanted` and the rotations of their keys; keys that are stored unrotated have
// none. Throws kUsage if keys are rotated and `rope` is null.
void TakeLayers(const Snapshot& snapshot, const ModelRope* rope, Approximation& wanted);

// Approximates all tokens of a snapshot but the first and last ones. `wanted` names transform,
// ratio, tokens and the rotation of each layer; its losses are computed. Throws what
// RequireReplaceable throws, kUnsupportedLayout if tokens lie in several pieces, kUsage if no token
// is left.
ApproximatedSource ApproximateSource(const Source& source, const Snapshot& snapshot,
                                     std::shared_ptr<const Transform> transform,
                                     Approximation wanted, ThreadPool& pool);

}  // namespace kv
