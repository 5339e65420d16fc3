// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/core/base/parallel.h"
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

// The quality that a plan leaves in one layer, over the measured rows.
struct LayerQuality {
  uint32_t layer = 0;
  AttentionSummary summary;             // all heads pooled, their outputs concatenated
  AttentionSummary evicting;            // the same for the rows that lose something
  std::vector<AttentionSummary> heads;  // per query head
  std::vector<AttentionSummary> evicting_heads;
  std::vector<double> step_mass;          // per measured row, mean over heads
  std::vector<double> step_output_error;  // per measured row; empty without V
};

// Compares every plan with the full cache, row by row: [plan][query head]. The softmax over the
// full cache is computed once per head and shared. All plans must be of the same layer.
std::vector<std::vector<AttentionRows>> MeasureHeads(const LayerAttention& attention,
                                                     std::span<const LayerPlan* const> plans,
                                                     const MeasuredRows& rows, ThreadPool& pool);

// Describes what MeasureHeads returns; results come in the order of the plans. Adds the samples of
// each row to `pooled`, one per plan, from which the caller makes figures of the whole model.
std::vector<LayerQuality> MeasureLayer(const LayerAttention& attention,
                                       std::span<const LayerPlan* const> plans,
                                       const MeasuredRows& rows, std::span<AttentionSamples> pooled,
                                       ThreadPool& pool);

}  // namespace kv::eviction
