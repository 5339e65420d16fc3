// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/bytes.h"
#include "lib/core/snapshot/diff.h"

namespace kv {

// Rows of the same tokens from both sides, in the order [token][head][dim].
struct RowPair {
  ByteSpan a, b;
  DType a_dtype = DType::kF16, b_dtype = DType::kF16;
  uint64_t first_token = 0;
  uint32_t heads = 0, head_dim = 0;
};

// Same element type: the stored bits decide what differs.
TensorDiff DiffBits(const RowPair& rows, std::optional<double> atol);

// Any types: `a` and `b` are the values of the rows, widened without loss. Two NaNs are the same
// value whatever their payloads, 0 and -0 are not.
TensorDiff DiffWidened(const RowPair& rows, std::span<const double> a, std::span<const double> b,
                       std::optional<double> atol);

// Values of any type as double: exact for all but the 64-bit integers.
void ToDoubles(DType dtype, ByteSpan bytes, std::vector<double>& out);

}  // namespace kv
