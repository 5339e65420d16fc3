// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/snapshot/diff.h"

namespace kv {

// Two tensors with as many rows of the same heads, and where their result goes.
struct TensorPair {
  const Snapshot* a_snapshot = nullptr;
  const Snapshot* b_snapshot = nullptr;
  size_t slot = 0;  // index into SnapshotDiff::layers
  bool is_value = false;
  KvTensor a = {}, b = {};
  TensorDiff diff = {};
  bool is_settled = false;  // found equal without a walk

  // One side is known to be stored Hadamard-rotated and the other not to be: equal bytes are other
  // values then. Where a side does not say, bytes are taken for what they are.
  bool one_is_turned() const;
};

// Finds what to compare. What has no counterpart, and what lies beside the tensors (positions,
// token ids), goes into the structure and notes of `diff`, which also gets its layers.
std::vector<TensorPair> MatchSnapshots(const Snapshot& a, const Snapshot& b,
                                       const DiffOptions& options, SnapshotDiff& diff);

}  // namespace kv
