// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Statistics of compressor weights, and differences of two weight files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/weights/weights.h"
#include "lib/study/statistics/distribution.h"

namespace kv {

// Summarises the values of one block.
struct ValueStats : ValueSummary {
  // The number of finite values that become infinities (overflows) or zeros (flushes) in another
  // type.
  uint64_t f16_overflows = 0, f16_flushes = 0, bf16_overflows = 0;
};
ValueStats StatsOfValues(const TensorView& view);

// Returns the values in C order as doubles, which hold every type up to f64 exactly. Throws
// kUnsupportedDtype.
std::vector<double> ToDoubles(const TensorView& view);

// Returns true if the values look like nn.Linear's initial ones, which are uniform in
// +-1/sqrt(in_features); training soon changes that.
bool LooksUntrained(const ValueStats& weight, uint64_t in_features);

// The differences of one tensor from another of the same shape.
struct ValueDiff {
  uint64_t values = 0;
  uint64_t different = 0;                         // pairs of unequal values; NaN equals NaN
  uint64_t beyond = 0;                            // |a - b| > atol + rtol |b|
  double max_abs = 0, max_rel = 0, mean_abs = 0;  // over pairs of finite values
  double cosine = 1;
  uint64_t first_beyond = 0;  // C-order index of the first pair beyond the tolerance, if any
};
ValueDiff DiffValues(const TensorView& a, const TensorView& b, double atol, double rtol);

struct BlockDiff {
  std::string name;     // "layer 0 compress_tk slot 3"
  std::string problem;  // such as "4 x 8 and 4 x 4", "only in A", "bias only in B"; or empty
  std::optional<ValueDiff> weight, bias;
};

struct WeightsDiff {
  std::vector<std::string> structure;  // header numbers and MLPs that differ
  std::vector<std::string> notes;      // differences that are tolerated: dtype, slot numbers
  std::vector<BlockDiff> blocks;       // MLPs that both have, in the order of `a`

  bool equal() const;  // true if nothing differs in structure or beyond the tolerance
};
// Matches blocks by layer, prefix and place in the MLP, whatever their order in the files.
WeightsDiff DiffWeights(const CompressorWeights& a, const CompressorWeights& b, double atol,
                        double rtol);

}  // namespace kv
