// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
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

// The meaning of an array's axes, outermost first, one letter each: L layer, 2 K then V, B batch, T
// (or S) token, H head, D dim, C channels (heads x dim, not yet divided). Parentheses join roles of
// one axis: "TH(2D)" has K and V side by side in its last axis, "L2(HTD)" all values of a layer's K
// in one.
class Axes {
 public:
  // Parses "bhtd", "[B, H, S, D]" ... Throws kUsage.
  static Axes Parse(std::string_view text);

  size_t rank() const { return axes_.size(); }
  bool Has(char role) const;
  std::string text() const;  // "[batch, head, token, dim]"

  struct Place {
    uint64_t layer = 0, part = 0, batch = 0;
  };
  // Returns one layer's K or V of the array. Throws kInconsistent if the array does not have these
  // axes, kGeometryMissing if a joined one cannot be divided.
  KvTensor View(const TensorView& array, const Place& place, const HeadSizes& heads = {}) const;
  // Returns the extent of a role that has its own axis; 1 if absent.
  uint64_t Extent(const TensorView& array, char role) const;

 private:
  struct Axis {
    uint64_t extent = 1, stride = 0;
  };
  Axis Find(const TensorView& array, char role, const HeadSizes& heads) const;

  std::vector<std::string> axes_;  // roles of each, outermost first
};

// Returns an example of --layout for an array with this number of axes, for messages.
std::string_view ExampleLayout(size_t rank);

// Decides from the values alone which of the first two axes of [a][b][dim] values of K or V counts
// tokens and which heads. Along tokens, rows of one head resemble each other (the same subspace,
// often the same mean, for keys also a similar phase of RoPE within a few tokens); along heads,
// rows of one token do not.
//
// For each axis let c be the cosine of two rows 1 to 8 apart on it, at the same place of the other,
// and q = mean c^2 + 4 max(0, mean c)^2, each distance weighing the same. The evidence is
// log(q_first / q_second), which does not depend on the scale of the values. For rows without
// structure its variance is 2/n_first + 2/n_second, with n the number of pairs compared; 0.01^2 is
// added, because real values are never quite even. An axis of one row counts as one without
// structure: q = 1/dim.
//
// At most 16384 pairs per axis and 512 dims of a row are sampled, evenly. Rows of zeros (padding)
// and rows with NaN or Inf are left out.
struct TokenAxis {
  double log_ratio = 0;      // above 0: the first axis counts tokens
  double variance = 0;       // of log_ratio if neither axis had structure
  bool is_measured = false;  // false: nothing could be compared

  // Returns the distance between the evidence and a tie, in standard errors.
  double margin() const;
  // Returns 0 or 1, or nothing if the margin is below kDecidingMargin.
  std::optional<int> axis() const;
  // Pools the evidence of tensors that have the same order.
  void Add(const TokenAxis& other);

  // Margin that decides, in standard errors; chosen on five models with windows from 16 tokens up,
  // see the measurement in formats/tensors/FORMAT.md.
  static constexpr double kDecidingMargin = 2.25;
};

// Measures `values`, which has three axes. Values that are not scalar floats are not measured.
TokenAxis FindTokenAxis(const TensorView& values);

}  // namespace kv
