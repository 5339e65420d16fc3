// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/core/snapshot/diff.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv {

// Presents a difference between two caches in documents and pages.

// The first difference beyond the tolerance, or else the first of all, in the order of layers with
// K before V.
struct FirstDifference {
  const TensorDiff* diff = nullptr;  // null if the caches are equal
  uint32_t layer = 0;
  char part = 'K';
};
FirstDifference FindFirst(const SnapshotDiff& diff);

// Writes bits such as "0x3800", as wide as the type.
std::string BitsText(DType dtype, uint64_t bits);
// Fields of documents on the comparison of two tensors, the first difference, and all layers of
// both caches.
const Fields<TensorDiff>& TensorDiffFields();
const Fields<SnapshotDiff>& SnapshotDiffFields();
// Returns the fields without the verdict whether the caches count as equal, which callers add.
const Fields<SnapshotDiff>& DifferenceFields();

// Returns "token 3 head 0 dim 17", the first difference in a tensor.
std::string PlaceText(const TensorDiff& diff);
// Returns a table of the tensors that differ.
TextTable DiffTable(const SnapshotDiff& diff);
// Returns a page on the differences of two caches: a map of layers and tokens, for which `diff`
// must have the bins, and the sizes of the differences by layer.
report::Page DiffPage(const std::string& a, const std::string& b, const SnapshotDiff& diff);

}  // namespace kv
