// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/core/snapshot/diff.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv {

// How documents and pages show a difference between two caches.

// The first difference that lies beyond the tolerance, or else the first of all, in the order of
// layers with K before V.
struct FirstDifference {
  const TensorDiff* diff = nullptr;  // null if the caches are equal
  uint32_t layer = 0;
  char part = 'K';
};
FirstDifference FirstOf(const SnapshotDiff& diff);

// Writes bits such as "0x3800", as wide as the type.
std::string BitsText(DType dtype, uint64_t bits);
// What documents say of the comparison of two tensors, of the first difference, and of all layers
// that both caches have.
const Fields<TensorDiff>& TensorDiffFields();
const Fields<SnapshotDiff>& SnapshotDiffFields();
// The same without the word whether they count as equal, where others decide that.
const Fields<SnapshotDiff>& DifferenceFields();

// A page that shows where two caches differ: a map of layers and tokens, of which `diff` must have
// the bins, and the sizes of the differences by layer. In diff_page.cc.
report::Page DiffPage(const std::string& a, const std::string& b, const SnapshotDiff& diff,
                      const std::string& footer);

}  // namespace kv
