// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/weights/plan.h"
#include "lib/study/dense/mlp.h"

namespace kv {

// How weights become values of the cache's type when the types differ.
enum class WeightsCast : uint8_t {
  kNearest,   // ties to even, as the converter does
  kTruncate,  // what csrc's helper does to reach f16: toward zero, and beyond its range nonsense
};

// csrc's f32 -> f16: mantissa cut off; from 65520 on not infinity but whatever the exponent bits
// make (70000 becomes NaN, 131072 becomes -0), infinity again from 2^31 on.
uint16_t TruncateToHalf(float value);

// One MLP of the weights with the numbers of a cache of `cache_dtype` (f32, f16 or bf16).
Mlp MakeMlp(const LinearBlock* blocks, DType cache_dtype, WeightsCast cast);

// The values of K or V of one layer after the step, [token][head][dim].
Bytes CompressTensor(const KvTensor& tensor, const StepPlan& plan, bool is_value, uint32_t layer,
                     const CompressorWeights& weights, WeightsCast cast, ThreadPool& pool);

// The compressed cache: layers and labels of the original, new_length tokens, no cells and no token
// ids (a compressed token is no token of the text). Owns its bytes. `plan` must come from PlanStep
// with the same arguments. Progress counts the bytes of the original.
Snapshot CompressCache(const Snapshot& snapshot, const CompressorWeights& weights,
                       const StepPlan& plan, WeightsCast cast, ThreadPool& pool,
                       Progress* progress = nullptr);

}  // namespace kv
