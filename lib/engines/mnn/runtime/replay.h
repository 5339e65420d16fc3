// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"
#include "lib/engines/mnn/runtime/config.h"
#include "lib/engines/mnn/runtime/layer_cache.h"
#include "lib/engines/mnn/runtime/runtime.h"
#include "lib/study/dense/score.h"
#include "lib/study/eviction/timeline.h"

namespace kv::mnn::runtime {

class RangeCodec;  // lib/engines/mnn/runtime/range_codec.h

// mnn: the engine event for event. design: what its text promises; see design_runtime.h.
enum class Engine { kMnn, kDesign };
std::string_view Name(Engine engine);
std::optional<Engine> ParseEngine(std::string_view name);

struct ReplayRequest {
  Engine engine = Engine::kMnn;
  Config lossless;
  bool h2o_enable = false;
  // The interval and the trigger length count for the lossless path even without H2O.
  eviction::BlockConfig h2o;
  mnn::h2o::MnnRevision revision = mnn::h2o::MnnRevision::kFinal;
  WeightRule weights = WeightRule::kFlashLocal;
  std::optional<uint64_t> prompt_tokens;  // where the trace does not say
  std::optional<uint64_t> decode_tokens;  // stop after so many; else at the end of the cache
  // Engine design: room for decoded ranges; else a sixteenth of the whole cache.
  std::optional<uint64_t> cache_bytes;
  // Results of workers are taken where the engine waits for them, at the end of each token, so that
  // no byte count depends on when one was done. Queue figures still do, and with a full queue what
  // is skipped: deterministic makes both those of the slowest workers, skips_of_slowest the latter.
  bool deterministic = false;
  bool skips_of_slowest = false;
  bool keep_events = false;
  const RangeCodec* codec = nullptr;  // null: the gear codec
  bool damage = false;                // flips a bit of what is held at the end, for tests
  std::stop_token stop;               // ends the replay between two layer calls
};

struct LayerResult {
  uint32_t layer = 0;         // of the snapshot
  bool in_h2o_range = false;  // by the range alone, as the engine asks
  uint64_t length = 0;        // tokens held at the end
  uint64_t cold_tokens = 0;   // of these: neither sink nor recent
  LayerCounters counters;     // the engine's
  Measured measured;
  ContentCheck content;
  Resident end;
};

struct Speed {
  uint64_t tokens = 0;
  double seconds = 0;            // layer calls, without what only a replay does
  double attention_seconds = 0;  // of these: scores, softmax and values over the layer's cache

  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

struct ReplayResult {
  Engine engine = Engine::kMnn;
  Config lossless;            // sanitised
  eviction::BlockConfig h2o;  // sanitised
  bool h2o_enabled = false;
  uint64_t prompt = 0, end = 0;  // decode positions [prompt, end)
  bool stopped = false;          // by the request's stop token; figures are up to there

  uint64_t cache_bytes = 0;  // room for decoded ranges; engine design

  // Under the engine's definitions. h2o_evict_us is timing.
  EngineMetrics metrics;  // as exported after the last layer call
  mnn::h2o::MnnMetrics h2o_metrics;
  double h2o_evict_us = 0;         // of the last decision
  uint64_t h2o_plans_cleared = 0;  // by the shrink rule, before they could be applied

  // Beside them, what happened.
  Measured measured;
  ContentCheck content;
  std::vector<LayerResult> layers;
  std::vector<eviction::LayerPlan> plans;  // what H2O's applied plans left, by layer
  std::vector<Resident> steps;             // [0] is after the prefill, then one per decode step
  uint64_t peak_bytes = 0;                 // largest total() after any layer call
  std::optional<Speed> speed;              // attention only; nothing without recorded queries
  std::string no_speed_reason;
  std::vector<Event> events;  // on request
  std::vector<std::string> warnings;

  // The whole sequence's K and V over what is resident at the end.
  double whole_model_ratio() const;
};

// One replay of a cache being decoded: the first tokens are the prompt, then one token a step up to
// the snapshot's length, layer by layer in the engine's order of a call: restore what was dropped,
// apply H2O's plan, append, attend, let H2O decide, take the lossless step. `trace` may be null:
// scores are then equal for all tokens, which changes what H2O keeps but not how much. Throws
// kUsage where the prompt is missing or as long as the cache, and what RequireMatch throws.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace* trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv::mnn::runtime
