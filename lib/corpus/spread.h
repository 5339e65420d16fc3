// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "lib/corpus/merge.h"

namespace kv::corpus {

// How a figure is spread over inputs.
struct Spread {
  uint64_t count = 0;
  double mean = 0, deviation = 0, min = 0, p5 = 0, median = 0, p95 = 0, max = 0;
  std::optional<double> weighted;  // of ratios: all originals over all that is left
};

struct FigureSpread {
  Spread all;
  std::map<uint32_t, Spread> by_group;  // by place in Merged::groups
  std::vector<FigureValue> outliers;    // far from the others, the farthest first, a few
};

// Goes over the values twice and keeps none of them.
FigureSpread SpreadOf(const Merged& merged, const FigureExtent& figure);

}  // namespace kv::corpus
