// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/study/analysis/tensor_analysis.h"

// Analyses how far a cache compresses: what codecs reach, what entropy models say they could reach,
// and why.
namespace kv::analysis {

struct LayerAnalysis {
  uint32_t layer = 0;
  std::string label, group;
  std::optional<TensorAnalysis> k, v;
};

// Sums over many tensors of one kind.
struct Totals : Coded {
  uint64_t own_bytes = 0;             // at the level asked for; coded_bytes if none was
  double values = 0, bound_bits = 0;  // bits of all values together
  bool decodes = true;

  void Add(const TensorAnalysis& tensor);
  double reached() const {
    const auto least = static_cast<double>(std::min(coded_bytes, own_bytes));
    return values == 0 ? 0 : 8.0 * least / values;
  }
  double own_ratio() const { return Coded{raw_bytes, own_bytes}.ratio(); }
  double bound() const { return values == 0 ? 0 : bound_bits / values; }
  double bound_ratio() const {
    return bound_bits == 0 ? 1 : 8.0 * static_cast<double>(raw_bytes) / bound_bits;
  }
};

// The tensor with the best or the worst ratio.
struct Extreme {
  uint32_t layer = 0;
  bool is_value = false;
  double ratio = 0;
};

struct Analysis {
  std::vector<LayerAnalysis> layers;
  Totals k, v;
  Extreme best, worst;
  std::vector<std::string> findings;  // sentences that a user should read

  Totals total() const;
};

// Spreads the tensors over the pool. The results do not depend on the number of threads.
Analysis Analyse(const Snapshot& snapshot, const TensorOptions& options, ThreadPool& pool,
                 Progress* progress = nullptr);

}  // namespace kv::analysis
