// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/weights/weights.h"
#include "lib/study/attention/attention.h"

namespace kv {

// Simpler ways to shrink one head's cache, for comparison with the compressor at equal bytes.

// A head's smaller keys and values, and the original tokens that each represents.
struct SmallCache {
  std::vector<float> k, v;  // [tokens][dim]
  std::vector<TokenRange> sources;
};

// Replaces each range by the mean of its tokens.
SmallCache MeanPool(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources);

// Keeps the last token of each range.
SmallCache KeepLast(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources);

// Keeps the `count` tokens with the smallest key norms, in their order; of equal norms the earlier
// one. Tokens with a NaN norm are evicted first.
SmallCache KeepSmallestKeys(const FloatMatrix& k, const FloatMatrix& v, uint64_t count);

// Quantises rows symmetrically to `bits` bits and dequantises them again, in place. Each row has
// one f16 scale, max|x| / (2^(bits-1) - 1).
void QuantiseRows(std::vector<float>& rows, uint64_t columns, int bits);
// Returns how many bytes a quantised row takes with its scale.
uint64_t QuantisedRowBytes(uint64_t columns, int bits);

// Measures what the compression step costs in attention: outputs over the compressed cache against
// outputs over the full one, for the same queries, layer by layer. The measurement is open-loop:
// each layer's cache is the recorded one, whatever earlier layers lost. The same figures are
// computed for simpler methods of the same size.

// The position of the next token after the step. InfiniLM and nano-vllm continue at the new length,
// the MiniCPM variant at the original one.
enum class PositionRule : uint8_t { kNewLength, kOriginal };

// Queries recorded with the cache. Rows at positions from plan.tokens on are decode steps, which
// see the tokens up to their own. Earlier rows count as a step right after the prefill and see all
// of the prefill.
struct RecordedQueries {
  uint32_t query_heads = 0;
  std::vector<int64_t> positions;  // positions of the rows, ascending
  // Returns the rule of a recorded layer.
  std::function<AttentionRule(uint32_t layer)> rule_of = [](uint32_t) { return AttentionRule(); };
  // Writes rows x head_dim values of one head of one layer. Returns false if the layer was not
  // recorded.
  std::function<bool(uint32_t layer, uint32_t head, std::vector<float>& out)> read;
};

struct QualityOptions {
  PositionRule positions = PositionRule::kNewLength;
  std::optional<ModelRope> rope;  // needed to move a query to another position
  // If there are no recorded queries, the keys of the last `key_queries` tokens are used as queries
  // ("keys-as-queries").
  std::optional<RecordedQueries> queries;
  uint64_t key_queries = 64;
};

// The cost of one way to shrink the cache.
struct MethodQuality {
  std::string name;
  std::string description;
  uint64_t tokens = 0;  // left in each layer
  uint64_t bytes = 0;   // bytes of all measured layers
  bool moved = false;   // true if queries are rotated to positions from the new length on
  struct Layer {
    uint32_t layer = 0;
    std::vector<AttentionSummary> heads;  // per query head
    AttentionSummary all;                 // heads concatenated
  };
  std::vector<Layer> layers;
  AttentionSummary all;
};

// The norm of a compressed token over the mean norm of the tokens that it represents, averaged over
// heads and groups. It is far from 1 if the MLPs belong to another tensor or segment, or are
// untrained.
struct NormRatio {
  uint32_t layer = 0;
  std::optional<double> k, v;  // empty if no token with a norm above 0 was compressed
};

struct StepQuality {
  std::string queries;  // "keys-as-queries" or "recorded"
  uint64_t query_rows = 0;
  uint32_t query_heads = 0;
  bool positions_moved = false;        // true if PositionRule::kNewLength could be applied
  uint64_t bytes_full = 0;             // full bytes of the measured layers
  std::vector<MethodQuality> methods;  // the compression step first
  std::vector<NormRatio> norm_ratios;
};

// Throws kUsage if the number of query heads is not a multiple of the cache's or the rotation does
// not fit them, and kUnsupportedKind if the rotation depends on the length and the run is too long
// for one rotation.
StepQuality MeasureStep(const Snapshot& cache, const Snapshot& compressed, const StepPlan& plan,
                        const QualityOptions& options, ThreadPool& pool);

}  // namespace kv
