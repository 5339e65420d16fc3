// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>

#include "lib/core/base/tensor.h"

namespace kv {

// Which of the first two axes of [a][b][dim] values of K or V counts tokens and which heads, told
// from the values alone: along tokens rows of one head resemble each other (the same subspace,
// often the same mean, keys also the same phase of RoPE a few tokens on); heads of one token do
// not.
//
// For each axis let c be the cosine of two rows 1 to 8 apart on it, at the same place of the other,
// and q = mean c^2 + 4 max(0, mean c)^2, each distance weighing the same. The evidence is
// log(q_first / q_second), which no scale of the values changes. For rows without structure it
// scatters with variance 2/n_first + 2/n_second of the pairs compared; 0.01^2 more stands for what
// is never quite even. An axis of one row is taken for one without structure: q = 1/dim.
//
// Sampled evenly: at most 16384 pairs an axis and 512 dims of a row. Rows of zeros (padding) and
// rows with NaN or Inf are left out.
struct TokenAxis {
  double log_ratio = 0;      // above 0: the first axis counts tokens
  double variance = 0;       // of log_ratio if neither axis had structure
  bool is_measured = false;  // false: nothing could be compared

  // Standard errors between the evidence and a tie.
  double margin() const;
  // 0 or 1, or nothing where the margin is below kDecidingMargin.
  std::optional<int> axis() const;
  // Pools the evidence of tensors that have the same order.
  void Add(const TokenAxis& other);

  static constexpr double kDecidingMargin = 2.25;
};

// `values` has three axes. Values that are not scalar floats are not measured.
TokenAxis FindTokenAxis(const TensorView& values);

}  // namespace kv
