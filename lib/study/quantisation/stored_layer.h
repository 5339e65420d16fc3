// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/rope.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/quality.h"
#include "lib/study/quantisation/types/cache_type.h"

// Measures what storing K and V of one layer in smaller types does to its attention, per query
// head. The full cache's attention is computed once and shared; the effect of a type is computed as
// a difference, so that small losses are as exact as large ones.
namespace kv::quantisation {

// The rounding of queries before they meet quantised keys.
enum class EngineQ {
  kCpu,    // rounded as in llama.cpp's CPU code: to 8 bits for block types, to bf16 for bf16
  kExact,  // not rounded
};

struct StoreRequest {
  std::vector<const quant::CacheType*> k_types, v_types;
  EngineQ engine_q = EngineQ::kCpu;
  Q8Rounding rounding = Q8Rounding::kAvx;
  bool rotate = true;
  const ModelRope* rope = nullptr;
  uint64_t keep_first = 0, keep_last = 0;  // tokens that each query still sees in full precision
  uint64_t first_tokens = 0;               // quant::StoreOptions::first_tokens
};

// Types of K and V: indices into the request's lists; kFull leaves K or V as it is.
struct TypePair {
  static constexpr uint32_t kFull = UINT32_MAX;
  uint32_t k = kFull, v = kFull;

  bool operator==(const TypePair&) const = default;
};

// K or V of a layer, stored in one type.
struct StoredSide {
  std::vector<float> difference;  // stored - full, [token][kv head][dim]
  double bytes = 0;               // bytes of all tokens; those kept in full count at 16 bits
  double signal = 0, noise = 0;   // sums of squares of values and of differences
  uint64_t not_finite = 0;        // stored values that are NaN or infinite

  // Returns 10 log10(signal / noise); infinite if nothing changed.
  double snr_db() const;
};

// A layer's K and V in all types.
struct StoredLayer {
  std::vector<float> k, v;  // in full precision, [token][kv head][dim]
  std::vector<StoredSide> k_stored, v_stored;
  uint64_t tokens = 0;
};
// `layers` is the number of layers of the model. Throws as quant::CacheType::store does.
StoredLayer StoreLayer(const LayerAttention& attention, uint32_t layers,
                       const StoreRequest& request, ThreadPool& pool);

// One value per measured row of one query head. NaN where queries, keys or values are not finite.
struct PairRows {
  // KL(P || P'), half of the sum of |P' - P|, and the shares of P's 8 and 64 largest that are among
  // those of P' (NaN in rows that see no more keys than that).
  std::vector<double> kl, moved, top8, top64;
  // |o - o'|^2, |o|^2, |o'|^2 and o.o': they add up over heads. Empty without V.
  std::vector<double> error2, norm2, changed2, dot;
  // [sample][row]: the gradients times o' - o; empty without gradients.
  std::vector<std::vector<double>> log_p_change;
};

// Measures every pair in `pairs`: [pair][query head].
std::vector<std::vector<PairRows>> MeasurePairs(
    const LayerAttention& attention, const StoredLayer& stored, const StoreRequest& request,
    const std::vector<TypePair>& pairs, const eviction::MeasuredRows& rows, ThreadPool& pool);

// A pair of types, and a plan that dropped tokens as well (null: none).
struct KeptPair {
  const eviction::LayerPlan* plan = nullptr;
  TypePair types;
};
// Measures a cache that holds only the tokens that a plan keeps, stored in the given types. Returns
// [combination][query head]; figures of attention weights are not computed. Tokens are quantised
// with the whole cache, because engines store a token when it arrives and drop it later.
std::vector<std::vector<PairRows>> MeasureKept(
    const LayerAttention& attention, const StoredLayer& stored, const StoreRequest& request,
    std::span<const KeptPair> kept, const eviction::MeasuredRows& rows, ThreadPool& pool);

// Rounds the queries of one head in place, as the engine's product with keys of this type sees
// them.
void RoundQueries(const quant::CacheType& type, const StoreRequest& request, uint32_t dim,
                  std::span<float> queries);

}  // namespace kv::quantisation
