// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/tensor.h"
#include "lib/snapshot/snapshot.h"

namespace kv {

// What the axes of an array mean, outermost first, one letter each: L layer, 2 K then V, B batch,
// T (or S) token, H head, D dim, C channels (heads x dim, not yet divided). Parentheses join what
// one axis holds: "TH(2D)" has K and V side by side in its last axis.
class Axes {
 public:
  // "bhtd", "[B, H, S, D]" ... Throws kUsage.
  static Axes Parse(std::string_view text);

  size_t rank() const { return axes_.size(); }
  bool Has(char role) const;
  std::string text() const;  // "[batch, head, token, dim]"

  struct Place {
    uint64_t layer = 0, part = 0, batch = 0;
  };
  // One layer's K or V of the array. Throws kInconsistent when the array does not have these axes.
  KvTensor View(const TensorView& array, const Place& place) const;
  // Extent of a role; 1 if absent.
  uint64_t Extent(const TensorView& array, char role) const;

 private:
  std::vector<std::string> axes_;  // roles of each, outermost first
};

}  // namespace kv
