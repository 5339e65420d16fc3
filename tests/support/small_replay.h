// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "tests/support/attention_case.h"

// A replay that evicts several times over the 160 tokens of MakeAttentionCase({}).
namespace kv::test {

inline eviction::ReplayRequest SmallRequest() {
  eviction::ReplayRequest request;
  request.engine = &mnn::h2o::kIntervals;
  request.config.block_tokens = 8;
  request.config.sink_tokens = 6;
  request.config.recent_tokens = 20;
  request.config.trigger_min_tokens = 70;
  request.config.layer_start = 1;
  request.targets = {2.0f};
  request.prompt_tokens = 64;
  return request;
}

inline eviction::ReplayResult RunOn(const AttentionCase& made,
                                    const eviction::ReplayRequest& request, int threads = 1) {
  ThreadPool pool(threads);
  return mnn::h2o::Replay(made.snapshot, made.trace, request, pool);
}

}  // namespace kv::test
