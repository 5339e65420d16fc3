// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/attention_cost.h"

#include <fmt/format.h>

#include "lib/h2o/replay.h"

namespace kv::gate {

AttentionCost MeasureAttention(const lossless::ReplayRequest& request,
                               const lossless::ReplayResult& row, const Subject& subject) {
  AttentionCost cost;
  if (subject.trace == nullptr) {
    cost.missing = "no attention trace: give 'trace'";
    return cost;
  }
  if (subject.trace->block_scores) {
    cost.missing = "a trace of block scores holds no attention rows";
    return cost;
  }
  if (row.h2o_plans_cleared > 0) {
    cost.missing = fmt::format("the lossless path threw away {} H2O plans (shrink rule)",
                               row.h2o_plans_cleared);
    return cost;
  }
  h2o::ReplayRequest alone;
  alone.engine =
      request.revision == h2o::MnnRevision::kR6 ? h2o::Engine::kMnnR6 : h2o::Engine::kMnn;
  alone.config = request.h2o;
  alone.weights = request.weights;
  alone.prompt_tokens = row.prompt;
  // Without H2O nothing is evicted: a range that holds no layer.
  if (!request.h2o_enable) alone.config.trigger_min_tokens = int64_t{1} << 40;
  h2o::ReplayResult result = h2o::Replay(subject.snapshot, *subject.trace, alone, subject.pool);
  h2o::ReplayRun& run = result.runs.front();
  if (request.h2o_enable && run.mnn &&
      run.mnn->metrics.total_evict_tokens != row.h2o_metrics.total_evict_tokens) {
    cost.missing =
        fmt::format("H2O alone evicts {} tokens, with the lossless path {}",
                    run.mnn->metrics.total_evict_tokens, row.h2o_metrics.total_evict_tokens);
    return cost;
  }
  cost.layers = std::move(run.layers);
  cost.summary = std::move(run.quality);
  if (cost.layers.empty() || !cost.summary)
    cost.missing = "the trace has no attention rows";
  else if (!cost.summary->has_output)
    cost.missing = "the snapshot has no values";
  return cost;
}

}  // namespace kv::gate
