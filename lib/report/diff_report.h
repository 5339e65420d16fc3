// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lib/core/snapshot/diff.h"
#include "lib/report/html.h"

namespace kv {

// Writes a difference between two caches as JSON.

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
// The place and values of a tensor's first difference. The tensor must differ.
nlohmann::ordered_json FirstJson(const TensorDiff& diff);
nlohmann::ordered_json TensorJson(const TensorDiff& diff);
// A list of {layer, k, v} for all layers that both caches have.
nlohmann::ordered_json LayersJson(const SnapshotDiff& diff);

// A page that shows where two caches differ: a map of layers and tokens, of which `diff` must have
// the bins, and the sizes of the differences by layer. In diff_page.cc.
report::Page DiffPage(const std::string& a, const std::string& b, const SnapshotDiff& diff,
                      const std::string& footer);

}  // namespace kv
