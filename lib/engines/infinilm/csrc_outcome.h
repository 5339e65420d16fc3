// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/core/weights/plan.h"

namespace kv {

// What InfiniLM's own step (csrc) makes of a cache and a weight file that it loads. It works layer
// by layer in the cache itself, checks late and says nothing: where our plan refuses, it may return
// the old length over a cache that is already half overwritten.

enum class CsrcEffect : uint8_t {
  kCompresses,   // as the definition says
  kNothing,      // returns the old length, nothing changed, nothing said
  kWrongMlp,     // compresses, but with the MLP of another prefix
  kLosesTokens,  // a segment without a result is left out of the cache
  kHalfWritten,  // some layers are overwritten, then the old length is returned
  kThrows,       // an exception ends the worker; layers before it are overwritten
};
std::string_view Name(CsrcEffect effect);

struct CsrcOutcome {
  CsrcEffect effect = CsrcEffect::kCompresses;
  uint64_t returned_length = 0;          // 0 when it throws
  std::vector<bool> layers_overwritten;  // with other values than before
  std::string reason;                    // one sentence; empty for kCompresses

  // The cache no longer is what the returned length says.
  bool corrupts() const;
};

// Head dims of the layers of a cache, as they are numbered 0, 1, ...
struct CsrcLayer {
  uint32_t k_dim = 0, v_dim = 0;
};

CsrcOutcome SimulateCsrc(const CompressorWeights& weights, std::span<const CsrcLayer> layers,
                         uint64_t cache_tokens, const StepSettings& settings);
// For a snapshot that holds all layers of its cache.
CsrcOutcome SimulateCsrc(const CompressorWeights& weights, const Snapshot& snapshot,
                         const StepSettings& settings);

// A plan that changes nothing: what kNothing amounts to.
StepPlan PlanNothing(const Snapshot& snapshot, const StepSettings& settings);

}  // namespace kv
