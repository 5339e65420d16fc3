// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lib/core/snapshot/snapshot.h"
#include "lib/study/statistics/moments.h"

namespace kv {

// What the values of one tensor look like, from one pass over its bytes.
struct TensorStats : ValueSummary {
  // Order-0 entropy in bits of each byte plane of a value (of a block, for block-quantised types).
  std::vector<double> plane_entropy_bits;
  std::vector<uint32_t> plane_symbols;  // how many different bytes each plane has
  uint64_t bytes = 0;
  // What an order-0 coder of the planes could reach: raw bits / sum of plane entropies, at least 1.
  double predicted_ratio = 1;
};

// Walks the tensor in pieces of bounded size and drops the pages behind it. Results do not depend
// on anything but the values. Entropies are of what is stored; values that are stored
// Hadamard-rotated are turned back.
TensorStats StatsOf(const Snapshot& snapshot, const KvTensor& tensor, bool is_value);

// The same from how often each pattern of a 16-bit type occurs.
TensorStats StatsOfPatterns(DType dtype, const std::vector<uint64_t>& patterns);

// Entropy in bits of a byte histogram.
double EntropyBits(const std::array<uint64_t, 256>& histogram);

}  // namespace kv
