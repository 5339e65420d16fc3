// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/tensor.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// The sizes that divide an axis which joins heads with something else; 0 = unknown.
struct HeadSizes {
  uint64_t count = 0, dim = 0;
};

// What the axes of an array mean, outermost first, one letter each: L layer, 2 K then V, B batch,
// T (or S) token, H head, D dim, C channels (heads x dim, not yet divided). Parentheses join what
// one axis holds: "TH(2D)" has K and V side by side in its last axis, "L2(HTD)" all values of a
// layer's K in one.
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
  // One layer's K or V of the array. Throws kInconsistent when the array does not have these axes,
  // kGeometryMissing when a joined one cannot be divided.
  KvTensor View(const TensorView& array, const Place& place, const HeadSizes& heads = {}) const;
  // Extent of a role that has an axis to itself; 1 if absent.
  uint64_t Extent(const TensorView& array, char role) const;

 private:
  struct Axis {
    uint64_t extent = 1, stride = 0;
  };
  Axis Find(const TensorView& array, char role, const HeadSizes& heads) const;

  std::vector<std::string> axes_;  // roles of each, outermost first
};

}  // namespace kv
