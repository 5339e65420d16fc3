// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by deviation.cc, attention.cc

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/dtype.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/engines/cacheblend/cache_pair.h"

namespace kv::blend {

// The selection of HKVD tokens (high KV deviation): those whose keys or values deviate most from a
// full prefill.

// Returns how many tokens are selected: scored * ratio, a double product truncated towards zero, as
// CacheBlend computes it. Throws kUsage unless ratio is in [0, 1].
uint64_t TopCount(uint64_t scored, double ratio);
// Throws kUsage if the suffix is longer than the prompt.
void RequireSuffix(uint64_t tokens, uint64_t suffix);

// Sums the squared differences of one token as CacheBlend does in a model of a 16-bit dtype:
// differences, squares and the sum are each rounded to `dtype`. CacheBlend sums in float, in an
// order that depends on its kernel; here the sum is exact before it is rounded.
float ScoreInDtype(const float* full, const float* old, uint64_t count, DType dtype);

struct Selection {
  uint64_t topk = 0;
  std::vector<uint64_t> indices;  // ascending; the forced suffix is last
  // The scores on both sides of the threshold; empty if no token was kept or none was dropped.
  std::optional<float> kept_min, dropped_max;
  std::optional<double> margin;  // kept_min - dropped_max
  uint64_t ties = 0;             // tokens with the score kept_min, if one of them was dropped
};

// Ranks all scored tokens, best first: NaN, then +infinity, then by value. Of equal scores the
// lower index comes first; torch does not define that order.
class Ranking {
 public:
  explicit Ranking(std::vector<float> scores);

  std::span<const float> scores() const { return scores_; }
  std::span<const uint32_t> order() const { return order_; }
  uint64_t nonfinite() const { return nonfinite_; }
  // Selects the best `topk` tokens and every token from scores().size() up to `tokens`.
  Selection Select(uint64_t topk, uint64_t tokens) const;

 private:
  std::vector<float> scores_;
  std::vector<uint32_t> order_;
  uint64_t nonfinite_ = 0;
};

struct Overlap {
  double share = 0, jaccard = 0;  // |A and B| / k, |A and B| / |A or B|
};
// Compares the first k of both orders. Returns nothing for k = 0.
std::optional<Overlap> MeasureOverlap(std::span<const uint32_t> a, std::span<const uint32_t> b,
                                      uint64_t k);
// Returns Spearman's rank correlation, with average ranks for equal values. Returns nothing if one
// side is constant or a value is NaN.
std::optional<double> Spearman(std::span<const double> a, std::span<const double> b);

// The distance of the chunks' keys (or values) of one layer from the full run's.
struct TensorDeviation {
  std::vector<double> tokens;    // per token: sum over heads and dims of (full - old)^2
  double sum = 0, full_sum = 0;  // sum of `tokens`, and sum of full^2 over all tokens
  // Figures of the tokens' relative deviations, sqrt(sum of (full - old)^2 / sum of full^2). Tokens
  // for which that is not finite are left out and counted.
  double rel_mean = 0, rel_p50 = 0, rel_p90 = 0, rel_p99 = 0, rel_max = 0;
  std::vector<double> chunk_means;  // mean relative deviation of each chunk's tokens
  uint64_t nonfinite = 0;

  double relative() const;  // the relative deviation of the whole tensor
};

struct LayerDeviation {
  uint32_t layer = 0;
  TensorDeviation v, k;
};

// Measures all layers in one pass over both caches. The results have the same bits for every number
// of threads and every SIMD target.
std::vector<LayerDeviation> MeasureDeviations(const CachePair& caches, ThreadPool& pool,
                                              Progress* progress);

// Computes the scores (ScoreInDtype) of one layer's values in a 16-bit dtype, for tokens [0,
// count).
std::vector<float> ScoresInDtype(const CachePair& caches, size_t layer, uint64_t count, DType dtype,
                                 ThreadPool& pool);

// Returns the relative error of a layer's keys if they are rotated a second time, as the original
// does when one object is used for two runs. Returns 0 if the keys need no rotation.
double DoubleRotationError(const CachePair& caches, size_t layer, ThreadPool& pool);

// Checks by layer 0 whether the inputs belong together. Its V depends on the token alone and its K
// on the token and its position, so both must equal the full run's up to rounding. Returns a
// sentence for each tensor that deviates more; for K the sentence names the key state (KeyState)
// that would fit, if a usual one does. Returns nothing if the snapshots do not begin at layer 0.
std::vector<std::string> DiagnoseFirstLayer(const CachePair& caches, const LayerDeviation& first);

// Measures the cost of blending in attention, and how much a bottom-right mask leaks of later
// tokens.

// The cost of blending in attention, measured with the queries of the full run. P and O are the
// probabilities and outputs over the full run's keys and values. P' and O' are those over the
// blended ones: the full run's rows where tokens were recomputed, the chunks' rows elsewhere.
struct AttentionError {
  double dev_l2 = 0;        // |P - P'| over heads, rows and columns
  double out_rel_l2 = 0;    // |O - O'| / |O| over rows and heads
  double out_cos_mean = 1;  // mean over rows of cos(O, O'), all heads concatenated
};

enum class Mask {
  kExact,  // a recomputed query sees the keys that a prefill would show it
  // the last of n rows sees all T keys and each earlier row one less, as both engines' kernels
  // align partial queries
  kBottomRight,
};

// The queries and how their attention is computed.
struct QueryRows {
  const AttentionTrace* trace = nullptr;
  const TraceLayer* layer = nullptr;

  bool Has(uint64_t position) const {
    return position >= trace->q_start && position < trace->end_position();
  }
};

// Measures the attention of the queries at positions [begin, T) for several sets of recomputed
// tokens, each one byte per token. Returns one error per set. `layer` is an index into
// CachePair::layers().
std::vector<AttentionError> MeasureAttention(const CachePair& caches, const QueryRows& queries,
                                             size_t layer, uint64_t begin,
                                             std::span<const std::vector<uint8_t>> recomputed,
                                             ThreadPool& pool);

// The attention of the recomputed tokens' own queries over blended keys, and the share that the
// bottom-right mask wrongly gives to later tokens.
struct LeakError {
  uint64_t queries = 0;  // number of queries that were measured
  // mean share that the bottom-right mask gives to keys of later tokens
  double leaked_mass_mean = 0;
  // outputs under the bottom-right mask against those under the exact mask
  double leak_out_rel_l2 = 0;
  AttentionError against_full;  // under the requested mask, against the full run
};
// Largest number of queries measured, evenly spread.
inline constexpr uint64_t kMostLeakQueries = 64;

// Measures one layer. `imp` are the recomputed tokens, ascending. `keys` is the number of keys that
// the engine passes to the kernel: the prompt's or the blender's.
LeakError MeasureLeak(const CachePair& caches, const QueryRows& queries, size_t layer,
                      std::span<const uint64_t> imp, uint64_t keys, Mask mask, ThreadPool& pool);
// Returns how many keys of later tokens the bottom-right mask shows to the query of each token in
// `imp`.
std::vector<uint64_t> ExtraKeys(std::span<const uint64_t> imp, uint64_t tokens);

}  // namespace kv::blend
