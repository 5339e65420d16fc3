// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/study/attention/attention.h"

namespace kv {

// What both comparisons of attention.h are made of.

inline constexpr uint64_t kAttentionTileRows = 64;

// The largest kTopK.back() visible keys, largest first; of equal ones the lower index.
void LargestKeys(std::span<const double> p, std::vector<uint32_t>& order);

// Share of the k largest probabilities that is kept, for each k of kTopK.
template <typename IsKept>
void TopKKept(std::span<const uint32_t> largest, const IsKept& is_kept, uint64_t row,
              AttentionRows& out) {
  for (size_t i = 0; i < kTopK.size(); ++i) {
    const size_t k = std::min<size_t>(kTopK[i], largest.size());
    size_t hits = 0;
    for (size_t j = 0; j < k; ++j) hits += is_kept(largest[j]);
    out.top_k[i][row] = k == 0 ? 1.0 : static_cast<double>(hits) / static_cast<double>(k);
  }
}

bool HasNan(std::span<const double> row);

// Rows of zeros, to be filled.
AttentionRows MakeRows(uint64_t rows, bool with_output);
// Row `row` of the output metrics from o and e = o - o'.
void StoreOutput(const float* o, const float* e, uint64_t columns, uint64_t row,
                 AttentionRows& out);
// A row whose probabilities do not exist: it must not pass for one that lost nothing.
void StoreUndefined(uint64_t row, AttentionRows& out);
void StoreUndefinedOutput(uint64_t row, AttentionRows& out);

void Narrow(std::span<const double> from, std::vector<float>& to);
// P x V for a tile of probability rows.
void Outputs(std::span<const float> p, uint64_t rows, const FloatMatrix& v,
             std::vector<float>& out);

}  // namespace kv
