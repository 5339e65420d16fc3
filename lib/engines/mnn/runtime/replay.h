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
#include "lib/engines/mnn/runtime/runtime.h"
#include "lib/study/dense/score.h"
#include "lib/study/eviction/timeline.h"

namespace kv::mnn::runtime {

// A replay runs on MNN's own runtime, event for event, with the eviction of its code today or of
// the build that its authors measured (kMnnR6), or on the design behind it, which design_runtime.cc
// describes.
enum class Engine { kMnn, kDesign, kMnnR6 };
std::string_view Name(Engine engine);
std::optional<Engine> ParseEngine(std::string_view name);

struct ReplayRequest {
  Engine engine = Engine::kMnn;
  Config lossless;
  bool h2o_enable = false;
  // The lossless path uses the interval and the trigger length even without H2O.
  eviction::BlockConfig h2o;
  WeightRule weights = WeightRule::kFlashLocal;
  std::optional<uint64_t> prompt_tokens;  // needed if the trace does not say
  std::optional<uint64_t> decode_tokens;  // stop after so many; the default is the cache's end
  // On the design's runtime, the room for decoded ranges; a sixteenth of the whole cache by
  // default.
  std::optional<uint64_t> cache_bytes;
  // Results of workers are taken where the engine waits for them, at the end of each token, and the
  // queue is replayed as if the workers were as slow as they may be. So neither a byte count nor a
  // queue figure depends on when a worker finished.
  bool keep_events = false;
  const RangeCodec* codec = nullptr;  // null means the gear codec
  bool damage = false;                // flips a bit of what is held at the end; for tests
  std::stop_token stop;               // ends the replay between two layer calls
};

struct LayerResult : LayerRecord {
  uint32_t layer = 0;         // of the snapshot
  bool in_h2o_range = false;  // by the range alone, whether H2O is on or not
  uint64_t length = 0;        // tokens held at the end
  uint64_t cold_tokens = 0;   // of these, those that are neither sink nor recent
  Resident end;
};

struct Speed {
  uint64_t tokens = 0;
  double seconds = 0;            // spent in layer calls, without the work that only a replay does
  double attention_seconds = 0;  // of these, spent on scores, softmax and values

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
  bool stopped = false;          // by the request's stop token; figures end there

  uint64_t cache_bytes = 0;  // room for decoded ranges, on the design's runtime

  // By the engine's definitions.
  EngineMetrics metrics;  // as exported after the last layer call
  mnn::h2o::MnnMetrics h2o_metrics;
  double h2o_evict_us = 0;         // a time: how long the last decision took
  uint64_t h2o_plans_cleared = 0;  // by the shrink rule, before they could be applied

  // What really happened.
  Measured measured;
  ContentCheck content;
  std::vector<LayerResult> layers;
  std::vector<eviction::LayerPlan> plans;  // what H2O's applied plans left, by layer
  std::vector<Resident> steps;             // [0] is after the prefill, then one per decode step
  uint64_t peak_bytes = 0;                 // largest total() after any layer call
  std::optional<Speed> speed;              // attention only; nothing without recorded queries
  std::string no_speed_reason;
  std::vector<Event> events;  // if the request asks for them
  std::vector<std::string> warnings;

  // The bytes of the whole sequence's K and V over those that are resident at the end.
  double whole_model_ratio() const;
};

// Replays the decoding of a cache. The first tokens are the prompt; then each step adds one token,
// up to the snapshot's length. Each step visits the layers in order, and each layer call does what
// the engine does: restore what was dropped, apply H2O's plan, append, attend, let H2O decide, take
// the lossless step. Without a trace all tokens score the same, which changes which tokens H2O
// keeps but not how many. Throws kUsage if the prompt is missing or as long as the cache, and what
// RequireMatch throws.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace* trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv::mnn::runtime
