// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The compression step of InfiniLM: MLPs that turn groups of tokens into one token each.
#pragma once

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/weights/weights.h"
#include "lib/study/dense/mlp.h"

namespace kv {

// The conversion of weights to the cache's type if the types differ.
enum class WeightsCast : uint8_t {
  kNearest,   // to the nearest, ties to even, as the converter does
  kTruncate,  // as csrc's helper converts to f16 (TruncateToHalf)
};

// Converts f32 to f16 as csrc does, by truncating the mantissa. Values from 65520 on become
// whatever their exponent bits give (70000 becomes NaN, 131072 becomes -0); only from 2^31 on do
// they become infinity.
uint16_t TruncateToHalf(float value);

// Makes one MLP of the weights, with the arithmetic of a cache of `cache_dtype` (f32, f16 or bf16).
// `blocks` are its three Linears.
Mlp MakeMlp(const LinearBlock* blocks, DType cache_dtype, WeightsCast cast);

// Computes K or V of one layer after the step, [token][head][dim].
Bytes CompressTensor(const KvTensor& tensor, const StepPlan& plan, bool is_value, uint32_t layer,
                     const CompressorWeights& weights, WeightsCast cast, ThreadPool& pool);

// Computes the compressed cache: the original's layers and labels, plan.new_length tokens, and
// neither cells nor token ids, because a compressed token is no token of the text. The result owns
// its bytes. `plan` must come from PlanStep with the same arguments. Progress counts the original's
// bytes.
Snapshot CompressCache(const Snapshot& snapshot, const CompressorWeights& weights,
                       const StepPlan& plan, WeightsCast cast, ThreadPool& pool,
                       Progress* progress = nullptr);

}  // namespace kv
