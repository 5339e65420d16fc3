// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/core/base/dtype.h"

namespace kv::blend {

// The selection of HKVD tokens: those whose keys or values deviate most from a full prefill.

// Returns how many tokens are selected: scored * ratio, a double product truncated towards zero, as
// the original computes it. Throws kUsage unless ratio is in [0, 1].
uint64_t TopCount(uint64_t scored, double ratio);
// Throws kUsage if the suffix is longer than the prompt.
void RequireSuffix(uint64_t tokens, uint64_t suffix);

// Sums the squared differences of one token as the original does in a model of a 16-bit dtype:
// differences, squares and the sum are each rounded to `dtype`. The original sums in float, in an
// order that its kernel chooses; here the sum is exact before it is rounded.
float ScoreInDtype(const float* full, const float* old, uint64_t count, DType dtype);

struct Selection {
  uint64_t topk = 0;
  std::vector<uint64_t> indices;  // ascending; the forced suffix is last
  // The scores on both sides of the cut; absent if no token was kept or none was dropped.
  std::optional<float> kept_min, dropped_max;
  std::optional<double> margin;  // kept_min - dropped_max
  uint64_t ties = 0;             // number of tokens that score kept_min, if one of them was dropped
};

// Ranks all scored tokens, best first: NaN, then +infinity, then by value. Of equal scores the
// lower index comes first; torch leaves that choice open.
class Ranking {
 public:
  explicit Ranking(std::vector<float> scores);

  std::span<const float> scores() const { return scores_; }
  std::span<const uint32_t> order() const { return order_; }
  uint64_t nonfinite() const { return nonfinite_; }
  // Selects the best `topk` tokens and every token from scores().size() up to `tokens`.
  Selection Select(uint64_t topk, uint64_t tokens) const;

 private:
  std::vector<float> scores_;
  std::vector<uint32_t> order_;
  uint64_t nonfinite_ = 0;
};

struct Overlap {
  double share = 0, jaccard = 0;  // |A and B| / k, |A and B| / |A or B|
};
// Compares the first k of both orders. Returns nothing for k = 0.
std::optional<Overlap> OverlapOf(std::span<const uint32_t> a, std::span<const uint32_t> b,
                                 uint64_t k);
// Returns Spearman's rank correlation, with average ranks for equal values. Returns nothing if one
// side is constant or a value is NaN.
std::optional<double> Spearman(std::span<const double> a, std::span<const double> b);

}  // namespace kv::blend
