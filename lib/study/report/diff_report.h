// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lib/core/snapshot/diff.h"

namespace kv {

// A difference between two caches, in JSON.

// The first difference that counts, or else the first at all, in the order of layers, K before V.
struct FirstDifference {
  const TensorDiff* diff = nullptr;  // null where there is none
  uint32_t layer = 0;
  char part = 'K';
};
FirstDifference FirstOf(const SnapshotDiff& diff);

// "0x3800": as wide as the type.
std::string BitsText(DType dtype, uint64_t bits);
// Place and values of the first difference of a tensor, which must have one.
nlohmann::ordered_json FirstJson(const TensorDiff& diff);
nlohmann::ordered_json TensorJson(const TensorDiff& diff);
// [{layer, k, v}] of all layers in both.
nlohmann::ordered_json LayersJson(const SnapshotDiff& diff);

}  // namespace kv
