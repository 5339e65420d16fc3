// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/base/parallel.h"
#include "lib/h2o/layer_attention.h"
#include "lib/h2o/timeline.h"
#include "lib/metrics/attention.h"

namespace kv::h2o {

// What a plan cost one layer, over the decode rows [prompt, end).
struct LayerQuality {
  uint32_t layer = 0;
  AttentionSummary summary;             // heads pooled, outputs concatenated
  AttentionSummary evicting;            // of the rows that lose something
  std::vector<AttentionSummary> heads;  // by query head
  std::vector<AttentionSummary> evicting_heads;
  std::vector<double> step_mass;          // [row] mean over heads
  std::vector<double> step_output_error;  // [row]; empty without V
};

// Compares every plan with the full cache, row by row: the softmax of the full cache is computed
// once per head and shared. Plans of the same layer; results in their order. Per-row samples go to
// `pooled`, one per plan, for figures of the whole model.
std::vector<LayerQuality> MeasureLayer(const LayerAttention& attention,
                                       std::span<const LayerPlan* const> plans, uint64_t prompt,
                                       std::span<AttentionSamples> pooled, ThreadPool& pool);

}  // namespace kv::h2o
