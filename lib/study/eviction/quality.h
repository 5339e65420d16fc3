// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/attention/attention.h"
#include "lib/study/attention/attention_samples.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/timeline.h"

namespace kv::eviction {

// The decode rows that are measured: all of them, or a random sample.
struct MeasuredRows {
  uint64_t first = 0, population = 0;  // positions [first, first + population)
  std::vector<uint64_t> positions;     // ascending

  bool is_sample() const { return positions.size() < population; }
};
// Chooses up to `most` (0: no limit) positions of [prompt, end); every set of positions is equally
// likely. The same seed chooses the same rows on every machine.
MeasuredRows ChooseRows(uint64_t prompt, uint64_t end, uint64_t most, uint64_t seed);

// How a plan changes the log probabilities of sampled next tokens, to first order: g . (o' - o) of
// the trace's gradients g. Changes of heads and layers add up.
struct LogPChange {
  uint64_t samples = 0, rows = 0;
  std::vector<double> values = {};  // [sample][measured row]; NaN where undefined or without g

  double at(uint64_t sample, uint64_t row) const { return values[sample * rows + row]; }
  // An empty one takes the shape of the other, else both must have the same.
  void Add(const LogPChange& other);
};

// The quality that a plan leaves in one layer, over the measured rows.
struct LayerQuality {
  uint32_t layer = 0;
  AttentionSummary summary;             // all heads pooled, their outputs concatenated
  AttentionSummary evicting;            // the same for the rows that lose something
  std::vector<AttentionSummary> heads;  // per query head
  std::vector<AttentionSummary> evicting_heads;
  std::vector<double> step_mass;          // per measured row, mean over heads
  std::vector<double> step_output_error;  // per measured row; empty without V
  std::vector<double> step_output_cosine;
  std::vector<LogPChange> log_p_changes;  // per kv head, its query heads summed; if asked for
};

// Compares every plan with the full cache, row by row: [plan][query head]. The softmax over the
// full cache is computed once per head and shared. All plans must be of the same layer. With
// `with_changes` the rows have log_p_change, which needs gradients of this layer in the trace, and
// V.
std::vector<std::vector<AttentionRows>> MeasureHeads(const LayerAttention& attention,
                                                     std::span<const LayerPlan* const> plans,
                                                     const MeasuredRows& rows, ThreadPool& pool,
                                                     bool with_changes = false);
// Whether MeasureHeads and MeasureLayer can do that.
bool HasChanges(const LayerAttention& attention);

// Describes what MeasureHeads returns; results come in the order of the plans. Adds the samples of
// each row to `pooled`, one per plan, from which the caller makes figures of the whole model. With
// `with_changes` the results have log_p_changes.
std::vector<LayerQuality> MeasureLayer(const LayerAttention& attention,
                                       std::span<const LayerPlan* const> plans,
                                       const MeasuredRows& rows, std::span<AttentionSamples> pooled,
                                       ThreadPool& pool, bool with_changes = false);

// StreamingLLM counts positions within the cache: the distance of a kept key from the query is the
// number of kept keys between them. In effect it turns the key on by the number of evicted tokens
// after it. Returns what the rows of one head at `positions` lose by a plan with `turned_by`,
// compared with the full cache as it was. `k` and `v` are all keys and values of the head as
// floats, [token][dim]; `v` is empty without values. `gradients` have a row per position.
AttentionRows CompareReRotated(const LayerAttention& attention, const LayerPlan& plan,
                               uint32_t head, std::span<const uint64_t> positions,
                               std::span<const float> k, std::span<const float> v,
                               OutputGradients gradients = {});

}  // namespace kv::eviction
