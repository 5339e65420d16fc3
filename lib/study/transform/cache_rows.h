// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/core/transform/transform.h"

// Caches as matrices: a row is a token, its features are [layer][head][dim].
namespace kv::transform {

struct CacheRows {
  std::vector<float> values;
  uint64_t tokens = 0, features = 0;
};

// Throws kUnsupportedKind for caches that have no such rows: layers that differ, without V or of
// other lengths, rows of several sequences, positions other than 0, 1, 2 ...; kGeometryMissing
// without heads.
void RequireRows(const Snapshot& snapshot);

// Returns the tokens that are coded: all except the first and the last ones.
TokenRange MiddleRange(uint64_t tokens, uint64_t first, uint64_t last);
// Removes the tokens with values that are not finite, and returns the indices of the others.
std::vector<uint64_t> DropNotFinite(CacheRows& rows);

// Throws kUsage if keys are rotated and `rope`, which would undo it, is null.
void RequireRope(const Snapshot& snapshot, const ModelRope* rope);
// Returns K or V of tokens. The rotation of keys is undone, unless they are stored without it.
// Needs a rope as RequireRope does.
CacheRows CollectRows(const Snapshot& snapshot, bool is_key, const ModelRope* rope,
                      TokenRange range);
// Undoes the rotation of rows of keys, or of gradients with respect to keys, which rotate alike.
// Needs a rope as RequireRope does.
void Unrotate(const Snapshot& snapshot, const ModelRope* rope, TokenRange range, CacheRows& rows);
// Rotates keys again whose rotation CollectRows undid.
void RotateToPositions(const Snapshot& snapshot, const ModelRope& rope, TokenRange range,
                       CacheRows& rows);

// Returns hashes of the last layer's V at every 64th token, which depend on all tokens before.
std::vector<uint64_t> Fingerprints(const Snapshot& snapshot);
// Returns true if more than a tenth of the cache's fingerprints are among those of the transform.
bool LearntFrom(const Transform& transform, const Snapshot& snapshot);

}  // namespace kv::transform
