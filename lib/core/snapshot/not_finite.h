// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// A place in a cache whose value is not a finite number.
struct NotFiniteValue {
  uint32_t layer = 0;
  bool is_value = false;
  uint64_t token = 0;
  uint32_t head = 0, dim = 0;
  double value = 0;
};

struct NotFinite {
  uint64_t nans = 0, infinities = 0;
  std::optional<NotFiniteValue> first = {};  // by layer, K before V, token, head, dim

  uint64_t count() const { return nans + infinities; }
  void Add(const NotFinite& later);
};

// Finds NaN and infinite values of K and V; values that `reference`, if given, also has in the same
// place do not count. Reads everything, in chunks of bounded size.
NotFinite FindNotFinite(const Snapshot& snapshot, const Snapshot* reference, ThreadPool& pool);

}  // namespace kv
