// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/study/attention/attention.h"

// What attention.cc and attention_kept.cc share; for them alone.
namespace kv {

// Query rows that are compared at once.
inline constexpr uint64_t kAttentionTileRows = 64;

// Lists the kTopK.back() keys of largest probability, largest first, of equal ones the lower index
// first. Keys of probability 0 are not listed.
void LargestKeys(std::span<const double> p, std::vector<uint32_t>& order);

// Stores, for each k of kTopK, which share of the k largest probabilities is kept.
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

// Returns rows of zeros, to be filled: with output figures if V is there, with changes of log p for
// `samples` gradients.
AttentionRows MakeRows(uint64_t rows, bool with_output, uint64_t samples);
// Stores the output figures of row `row` from o and e = o - o', `columns` floats each.
void StoreOutput(const float* o, const float* e, uint64_t columns, OutputGradients gradients,
                 uint64_t row, AttentionRows& out);
// Makes every figure of a row NaN, because its probabilities do not exist: it must not pass for a
// row that lost nothing.
void StoreUndefined(uint64_t row, AttentionRows& out);
// Does so for the output figures alone.
void StoreUndefinedOutput(uint64_t row, AttentionRows& out);

}  // namespace kv
