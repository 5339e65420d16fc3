// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The compression step of InfiniLM: MLPs that turn groups of tokens into one token each.
#pragma once  // implemented by compressor.cc, csrc_outcome.cc

#include <span>
#include <string>
#include <vector>

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

// Computes the compressed cache: the source's layers and labels, plan.new_length tokens, and
// neither cells nor token ids, because a compressed token is no token of the text. The result owns
// its bytes. `plan` must come from PlanStep with the same arguments. Progress counts the source's
// bytes.
Snapshot CompressCache(const Snapshot& snapshot, const CompressorWeights& weights,
                       const StepPlan& plan, WeightsCast cast, ThreadPool& pool,
                       Progress* progress = nullptr);

// The outcome of InfiniLM's own step (csrc) on a cache and a weight file that it loads. It works in
// the cache itself, layer by layer, checks late and reports nothing: where our plan refuses, it may
// return the old length over a cache that is already half overwritten.

enum class CsrcEffect : uint8_t {
  kCompresses,   // csrc compresses as defined
  kNothing,      // csrc changes nothing and returns the old length
  kWrongMlp,     // csrc compresses, but with the MLP of another prefix
  kLosesTokens,  // csrc leaves a segment without a result out of the cache
  kHalfWritten,  // csrc overwrites some layers, then returns the old length
  kThrows,       // an exception ends the worker after some layers are overwritten
};
std::string_view Name(CsrcEffect effect);

struct CsrcOutcome {
  CsrcEffect effect = CsrcEffect::kCompresses;
  uint64_t returned_length = 0;          // 0 when it throws
  std::vector<bool> layers_overwritten;  // [layer]: true if its values changed
  std::string reason;                    // one sentence; empty for kCompresses

  // Returns true if the cache no longer has the content that the returned length promises.
  bool corrupts() const;
};

// Head sizes of a layer; layers are numbered 0, 1, ...
struct CsrcLayer {
  uint32_t k_dim = 0, v_dim = 0;
};

CsrcOutcome SimulateCsrc(const CompressorWeights& weights, std::span<const CsrcLayer> layers,
                         uint64_t cache_tokens, const StepSettings& settings);
// Predicts csrc's outcome on a snapshot, which must hold all layers of its cache.
CsrcOutcome SimulateCsrc(const CompressorWeights& weights, const Snapshot& snapshot,
                         const StepSettings& settings);

// Returns a plan that changes nothing, as kNothing does.
StepPlan PlanNothing(const Snapshot& snapshot, const StepSettings& settings);

}  // namespace kv
