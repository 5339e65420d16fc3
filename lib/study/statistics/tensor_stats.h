// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/core/snapshot/snapshot.h"
#include "lib/report/html.h"
#include "lib/study/statistics/distribution.h"

namespace kv {

// Summarises the values of one tensor, from one pass over its bytes.
struct TensorStats : ValueSummary {
  // Order-0 entropy in bits of each byte plane of a value (of a block, for block-quantised types).
  std::vector<double> plane_entropy_bits;
  std::vector<uint32_t> plane_symbols;  // the number of different bytes in each plane
  uint64_t bytes = 0;
  // The ratio that an order-0 coder of the planes could reach: raw bits / sum of plane entropies,
  // at least 1.
  double predicted_ratio = 1;
};

const Fields<TensorStats>& TensorStatsFields();

// Walks the tensor in pieces of bounded size and gives the pages behind it back to the system. The
// results depend on the values alone. Entropies are those of the stored bytes; a Hadamard transform
// is undone before values are summarised.
TensorStats MeasureTensor(const Snapshot& snapshot, const KvTensor& tensor, bool is_value);

// Computes the statistics of a 16-bit type from the number of occurrences of each bit pattern.
TensorStats ComputePatternStats(DType dtype, const std::vector<uint64_t>& patterns);

// Returns the order-0 entropy, in bits per byte, of a byte histogram.
double EntropyBits(const std::array<uint64_t, 256>& histogram);

struct LayerStats {
  uint32_t layer = 0;
  std::optional<TensorStats> k = {}, v = {};
};

// Returns a table with a row for each tensor.
TextTable StatsTable(const std::vector<LayerStats>& layers);
// Adds the statistics of a cache to a page: entropies, ratios and ranges by layer, then a table.
void AddStats(const std::vector<LayerStats>& layers, report::Page& page);
// Adds only the chart of the entropies.
void AddPlaneEntropies(const std::vector<LayerStats>& layers, report::Page& page);

}  // namespace kv
