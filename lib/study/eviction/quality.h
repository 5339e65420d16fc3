// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/attention/attention.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/timeline.h"

namespace kv::eviction {

// The decode rows that figures are taken from: all of them, or a random sample.
struct MeasuredRows {
  uint64_t first = 0, population = 0;  // positions [first, first + population)
  std::vector<uint64_t> positions;     // ascending

  bool is_sample() const { return positions.size() < population; }
};
// Up to `most` (0: no limit) of [prompt, end), every choice equally likely. The same seed chooses
// the same rows, whatever the machine.
MeasuredRows ChooseRows(uint64_t prompt, uint64_t end, uint64_t most, uint64_t seed);

// What a plan cost one layer, over the measured rows.
struct LayerQuality {
  uint32_t layer = 0;
  AttentionSummary summary;             // heads pooled, outputs concatenated
  AttentionSummary evicting;            // of the rows that lose something
  std::vector<AttentionSummary> heads;  // by query head
  std::vector<AttentionSummary> evicting_heads;
  std::vector<double> step_mass;          // [measured row] mean over heads
  std::vector<double> step_output_error;  // [measured row]; empty without V
};

// Compares every plan with the full cache, row by row: the softmax of the full cache is computed
// once per head and shared. Plans of the same layer; results in their order. Per-row samples go to
// `pooled`, one per plan, for figures of the whole model.
std::vector<LayerQuality> MeasureLayer(const LayerAttention& attention,
                                       std::span<const LayerPlan* const> plans,
                                       const MeasuredRows& rows, std::span<AttentionSamples> pooled,
                                       ThreadPool& pool);

}  // namespace kv::eviction
