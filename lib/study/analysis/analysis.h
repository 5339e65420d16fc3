// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/analysis/tensor_analysis.h"

// Analyses how far a cache compresses: what codecs reach, what entropy models say they could reach,
// and why.
namespace kv::analysis {

// Returns how many bits per value the best linear prediction of each channel from the channels
// before it in its head would save if values were Gaussian: -log2(det R) / 2 / head_dim with a
// head's correlation matrix R, averaged over heads. Returns nothing if the heads are unknown or too
// wide, or if there are too few tokens: a matrix of few samples looks dependent when it is not.
std::optional<double> CrossChannelGain(const KvTensor& tensor);

struct LayerAnalysis {
  uint32_t layer = 0;
  std::string label, group;
  std::optional<TensorAnalysis> k, v;
};

// Sums over many tensors of one kind.
struct Totals : Coded {
  uint64_t own_bytes = 0;             // at the requested level; without one, coded_bytes
  double values = 0, bound_bits = 0;  // total bits of all values
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
  std::vector<std::string> findings;  // sentences that the user should read

  Totals total() const;
};

// Spreads the tensors over the pool. The results do not depend on the number of threads.
Analysis Analyse(const Snapshot& snapshot, const TensorOptions& options, ThreadPool& pool,
                 Progress* progress = nullptr);

// Shows the analysis of a cache: document fields, table and page.

// Returns the fields of analyze's document that describe the whole cache.
const Fields<Analysis>& AnalysisFields();
// Returns a table with a row per tensor; `level` names the level of TensorAnalysis::own.
TextTable LayersTable(const Analysis& analysis, const std::string& level);
// Adds charts by layer, a table and the findings to a page. `level` names the level of
// TensorAnalysis::own.
void AddAnalysis(const Analysis& analysis, const std::string& level, report::Page& page);

}  // namespace kv::analysis
