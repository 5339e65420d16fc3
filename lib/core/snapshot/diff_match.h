// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/snapshot/diff.h"

namespace kv {

// Two tensors with equal numbers of rows and heads, and where their result goes.
struct TensorPair {
  const Snapshot* a_snapshot = nullptr;
  const Snapshot* b_snapshot = nullptr;
  size_t slot = 0;  // index into SnapshotDiff::layers
  bool is_value = false;
  KvTensor a = {}, b = {};
  TensorDiff diff = {};
  std::vector<TensorDiff> bins = {};
  bool is_settled = false;  // found equal without a walk

  // Whether one side is known to be Hadamard-rotated and the other known not to be: equal bytes
  // then mean different values. If a side does not say, its bytes are compared as stored.
  bool one_is_turned() const;
};

// Finds the tensors to compare. Tensors without a counterpart, and differences beside the tensors
// (positions, token ids), go into the structure and notes of `diff`, which also gets its layers.
std::vector<TensorPair> MatchSnapshots(const Snapshot& a, const Snapshot& b,
                                       const DiffOptions& options, SnapshotDiff& diff);

}  // namespace kv
