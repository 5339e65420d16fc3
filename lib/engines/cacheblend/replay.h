// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The replay of a blend: what the engine selects, what is left of the deviation, and faults that
// the original would have with this prompt.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/engines/cacheblend/deviation.h"

namespace kv::blend {

// The engine whose code is replayed.
enum class Engine {
  // scores all tokens but the suffix, forces the suffix, computes the check layer exactly
  kCacheBlend,
  kLmCache,  // scores all tokens, always recomputes none, blends the check layer too
};
// The tensor whose deviation scores tokens at the check layer.
enum class ScoreRule { kV, kK, kKAndV };

// A later check layer, which keeps the best of the tokens chosen so far: the gradual filtering of
// the paper. Both engines have lists for it in their configuration, but no code.
struct Filter {
  uint32_t layer = 0;  // layer number in the snapshot
  double ratio = 0;    // share of the scored tokens
};

struct Request {
  Engine engine = Engine::kCacheBlend;
  ScoreRule score = ScoreRule::kV;
  uint32_t check_layer = 1;  // layer number in the snapshot
  double ratio = 0.16;
  std::vector<Filter> filters;  // at ascending layers, with nonincreasing ratios
  std::vector<double> ratios;   // ratios of the curve, ascending; `ratio` is among them
  uint64_t suffix = 0;          // tokens of the question, which ends the prompt
  Mask mask = Mask::kExact;
  uint64_t seed = 0;
  std::optional<DType> emulate;  // 16-bit model dtype in which scores are computed
};

// The shares of a layer's deviation that are left after blending.
struct Remaining {
  double v = 0, k = 0;
};

struct CurveLayer {
  uint32_t layer = 0;
  double v_sum = 0, k_sum = 0;  // squared deviations that remain, as sums instead of shares
  Remaining selected;           // what remains with the tokens that the check layer selects
  Remaining oracle;             // what remains with the best tokens of this layer
  Remaining random, first_of_chunk;
  std::optional<AttentionError> attention;
};

struct CurvePoint {
  double ratio = 0;
  Selection selection;
  double compute_share = 0;
  std::vector<CurveLayer> layers;  // the blended layers
  CurveLayer mean;                 // mean over the blended layers
};

// Compares a layer's own choice of tokens with the check layer's, and its scores with those of the
// layer before. Empty if the layer deviates by rounding only.
struct LayerRanks {
  std::optional<Overlap> with_check;
  std::optional<double> spearman_prev;
};

struct LayerLeak {
  uint32_t layer = 0;
  LeakError error;
};

// Tokens that a later check layer keeps for the layers after it.
struct Filtered {
  Filter filter;
  size_t place = 0;  // index of the check layer in the layers
  uint64_t topk = 0;
  std::vector<uint64_t> indices;  // ascending; the forced suffix is last
};

// A fault of CacheBlend's code with this prompt.
struct Fault {
  std::string name, text;
  std::optional<double> value;
};

struct Result {
  Request request;
  size_t check_place = 0;  // index of the check layer in the layers
  uint64_t tokens = 0, covered = 0;
  std::vector<LayerDeviation> layers;
  std::vector<LayerRanks> ranks;
  Selection selection;
  std::vector<Filtered> filtered;
  // With the filters: the deviation that is left in the blended layers, and the share of the whole
  // prefill that is computed.
  Remaining filtered_left;
  double filtered_compute_share = 0;
  uint64_t nonfinite = 0;  // number of scores of the check layer that are not finite
  // number of HKVD tokens by chunk, without the forced suffix
  std::vector<uint64_t> chunk_selected;
  std::vector<CurvePoint> curve;
  bool has_attention = false;
  double extra_keys_mean = 0;
  std::vector<LayerLeak> leaks;
  std::vector<Fault> faults;
  std::vector<std::string> warnings;

  const CurvePoint& main() const;  // at request.ratio
  // Returns the tokens that are recomputed in a blended layer, by its index.
  const std::vector<uint64_t>& IndicesAt(size_t place) const;
};

std::string_view Name(Engine engine);
std::string_view VariantName(const Request& request);  // "cacheblend-v", "lmcache-k", "k+v"
std::string_view Name(Mask mask);

// Replays the selection and the blend. `trace` may be null, or hold queries of some layers only;
// attention figures need its queries.
Result Replay(const CachePair& caches, const AttentionTrace* trace, const Request& request,
              ThreadPool& pool, Progress* progress);

// Return the orders in which baselines recompute the scored tokens [0, scored): at random, or the
// first tokens of all chunks, then their second ones, and so on.
std::vector<uint32_t> RandomOrder(uint64_t scored, uint64_t seed);
std::vector<uint32_t> MakeFirstOfChunkOrder(const std::vector<Chunk>& chunks, uint64_t scored);

// Returns one byte per token: 1 for the first k of the order and for all tokens from `scored` on.
std::vector<uint8_t> Recomputed(std::span<const uint32_t> order, uint64_t k, uint64_t scored,
                                uint64_t tokens);

// Builds the cache that blending leaves behind: rows of the full run up to the check layer and
// wherever tokens were recomputed, and the chunks' rows elsewhere. All keys are rotated to the
// prompt's positions. Values have the full run's types, so recomputed rows keep their bits; block
// types become f32. The whole cache is held in memory.
Snapshot BlendedCache(const CachePair& caches, const Result& result, ThreadPool& pool);

}  // namespace kv::blend
