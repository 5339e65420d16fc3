// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/registry.h"
#include "lib/core/base/tensor.h"

namespace kv::mlx {

struct Quantisation {
  uint64_t group, bits;  // numbers of a row that share scale and bias; bits of each
};

struct QuantisedArray {
  const TensorView &numbers, &scales, &biases;  // [B, H, T, words], [B, H, T, groups] twice
};

// Rows of a batch that follow one another.
struct BatchRange {
  uint64_t first, count;
};

// Decodes the first `tokens` of each of these rows to f32 in a buffer of the file: scale x number +
// bias, rounded once. Throws kBadField, kSizeMismatch, kUnsupportedDtype, kLimit above
// OpenOptions::max_bytes.
KvTensor Decode(const QuantisedArray& array, const Quantisation& how, uint64_t tokens,
                const BatchRange& rows, const OpenOptions& options, TensorFile& file);

}  // namespace kv::mlx
