// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by replay.cc, search.cc

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/progress.h"
#include "lib/study/eviction/quality.h"
#include "lib/study/quantisation/stored_layer.h"

// Replays a whole cache in smaller types: every pair of types in every layer, from which the loss
// of any choice of types by layer follows without another pass.
namespace kv::quantisation {

struct ReplayRequest {
  StoreRequest store;
  // The first pair is the unchanged cache, whose types lose nothing.
  std::vector<TypePair> pairs;
  uint32_t head_dim = 0;          // head dim of K, which block types of llama.cpp must divide
  uint64_t prompt_tokens = 0;     // rows from this position on are measured
  uint64_t rows = 512, seed = 0;  // maximum number of rows, drawn by `seed`; 0: all
  // layer weights that predict the loss in nats; if empty, the trace's gradients do, if it has any
  eviction::LayerWeights weights;
};

// Figures of one query head, of all heads of a layer, or of all layers: means over rows and heads,
// except for the output error, which is |O - O'| / |O| over rows (and heads). NaN if nothing was
// measured.
struct PairFigures {
  double output_error = 0, one_minus_cosine = 0;
  double attention_kl = 0, mass_moved = 0, top8 = 0, top64 = 0;
  uint64_t rows = 0, undefined_rows = 0;
};

struct LayerFigures {
  uint32_t layer = 0;
  double full_bytes = 0;
  std::vector<double> k_bytes, v_bytes;  // by type
  std::vector<double> k_snr, v_snr;      // dB
  std::vector<uint64_t> k_not_finite, v_not_finite;
  std::vector<PairFigures> all;                 // by pair; cosines of heads concatenated
  std::vector<std::vector<PairFigures>> heads;  // [pair][query head]
  std::vector<eviction::LogPChange> changes;    // by pair; empty without gradients
  std::vector<std::vector<double>> cosines;     // [pair][row], heads concatenated

  double BytesOf(const TypePair& pair) const;
};

struct ReplayResult {
  std::vector<TypePair> pairs;
  std::vector<LayerFigures> layers;
  std::vector<uint32_t> missing_layers;  // layers of the snapshot without rows in the trace
  double missing_bytes = 0;              // full size of these layers
  eviction::MeasuredRows measured;
  uint64_t tokens = 0;
  std::optional<eviction::KlMethod> kl_method;
  bool lacks_recorded_state = false;  // true if all gradients are of evicted states
  eviction::LayerWeights weights;
};

// Replays all pairs of types. Throws what StoreLayer throws does, and kTraceMismatch for traces
// without queries.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress);

// Returns why a type stores no token of this cache, so that its figures are those of the whole
// cache. Returns "" if it stores some, or keeps K (or V) by design.
std::string WhyUnchanged(const ReplayRequest& request, const ReplayResult& result, uint32_t type,
                         bool is_key);
// Returns true if WhyUnchanged has a reason for both types of the pair.
bool IsUnchanged(const ReplayRequest& request, const ReplayResult& result, const TypePair& pair);

// Size and loss of the whole cache with one pair for each measured layer.
struct Outcome {
  double bytes = 0, full_bytes = 0;  // layers that were not measured count at full size
  PairFigures mean;                  // over layers
  double worst_output_error = 0;     // largest error of a layer
  std::optional<eviction::PredictedKl> kl;

  double ratio() const { return full_bytes / bytes; }
};
Outcome Evaluate(const ReplayResult& result, const std::vector<size_t>& choice);
// Evaluates the same pair for all layers.
Outcome EvaluatePair(const ReplayResult& result, size_t pair);

// Searches for the types of each layer that save most within limits, from the figures of a replay.

struct SearchLimits {
  std::optional<double> loss;             // upper limit
  std::optional<double> bytes_per_token;  // upper limit
};

struct SearchPoint {
  std::vector<size_t> choice;  // index of the pair of each measured layer
  double bytes = 0, loss = 0;
};

struct SearchResult {
  bool is_nats = false;  // true: losses are nats; false: means of 1 - cosine over layers
  // The path from the whole cache to the smallest one; each step saves bytes at the least loss per
  // byte.
  std::vector<SearchPoint> path;
  std::vector<SearchPoint> uniform;       // one pair for all layers, in the order of the pairs
  std::optional<SearchPoint> best;        // empty if nothing on the path is within the limits
  std::optional<size_t> best_uniform;     // index of a pair
  std::optional<size_t> best_with_flags;  // the best of those that `has_flags` allows
};
// `has_flags[pair]` is true if an engine has flags for this pair.
SearchResult Search(const ReplayResult& result, const SearchLimits& limits,
                    const std::vector<bool>& has_flags);

}  // namespace kv::quantisation
