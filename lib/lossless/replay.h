// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "lib/base/parallel.h"
#include "lib/base/progress.h"
#include "lib/h2o/mnn_engine.h"
#include "lib/kernels/score.h"
#include "lib/lossless/config.h"
#include "lib/lossless/counters.h"
#include "lib/snapshot/attention_trace.h"
#include "lib/snapshot/snapshot.h"

namespace kv::lossless {

class RangeCodec;  // lib/lossless/range_codec.h

// mnn: the engine event for event. design: what its text promises; see design_runtime.h.
enum class Engine { kMnn, kDesign };
std::string_view Name(Engine engine);
std::optional<Engine> ParseEngine(std::string_view name);

struct ReplayRequest {
  Engine engine = Engine::kMnn;
  Config lossless;
  bool h2o_enable = false;
  h2o::Config h2o;  // interval and trigger length count for the lossless path even without H2O
  h2o::MnnRevision revision = h2o::MnnRevision::kFinal;
  WeightRule weights = WeightRule::kFlashLocal;
  std::optional<uint64_t> prompt_tokens;      // where the trace does not say
  std::optional<uint64_t> decode_tokens;      // stop after so many; else at the end of the cache
  uint64_t cache_bytes = uint64_t{64} << 20;  // engine design: room for decoded ranges
  // Results of workers are taken only where the engine waits for them anyway, so that queue figures
  // do not depend on their luck: those of the slowest workers.
  bool deterministic = false;
  bool keep_events = false;
  const RangeCodec* codec = nullptr;  // null: the gear codec
  std::stop_token stop;               // ends the replay between two layer calls
};

// A call that did something.
enum class EventKind {
  kEvict,         // H2O decided; tokens = kept, of `length`
  kCompact,       // its plan was applied; tokens = kept
  kEncode,        // a range was handed to the encoder
  kApply,         // its result came back; bytes and microseconds are set
  kDrop,          // its raw bytes were given up (mnn: overwritten with zeros; design: freed)
  kRestore,       // its raw bytes came back into the cache (mnn), or a reader decoded it (design)
  kDecode,        // it was decoded and compared (mnn: probe, full)
  kShrink,        // the cold range became shorter: blocks and plan thrown away
  kBackpressure,  // the queue was full: mnn skips the range for good, design comes back to it
  kFallback,      // something failed; `what` says it
};
std::string_view Name(EventKind kind);

struct Event {
  EventKind kind = EventKind::kEncode;
  uint64_t token = 0;              // position decoded
  uint32_t layer = 0;              // of the snapshot
  uint64_t length = 0;             // tokens in the layer's cache
  uint64_t begin = 0, tokens = 0;  // of the range, in the layer's cache
  uint64_t raw_bytes = 0, compressed_bytes = 0;
  int64_t us = 0;
  std::string_view what;
};

// Where the first byte differed from the snapshot.
struct Difference {
  uint32_t layer = 0;
  bool is_value = false;
  uint32_t head = 0;
  uint64_t position = 0;  // of the token
};

// Ranges of the running cache compared with the snapshot's rows, by hash, whenever bytes came out
// of the lossless path, and all that is held at the end.
struct ContentCheck {
  uint64_t ranges = 0, bytes = 0, mismatches = 0;
  std::optional<Difference> first;

  bool equal() const { return mismatches == 0; }
  void Add(const ContentCheck& other);
};

// Bytes of K and V, all layers together, after one decode step.
struct Resident {
  uint64_t token = 0;
  uint64_t full = 0;       // if nothing were evicted, compressed or over-allocated
  uint64_t held = 0;       // rows that the layers hold, at their raw size
  uint64_t raw = 0;        // allocated for raw rows (mnn: buffers that never shrink)
  uint64_t blobs = 0;      // compressed
  uint64_t caches = 0;     // decoded copies
  uint64_t in_flight = 0;  // copies that wait for a worker, and its results

  uint64_t total() const { return raw + blobs + caches + in_flight; }
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
  Config lossless;  // sanitised
  h2o::Config h2o;  // sanitised
  bool h2o_enabled = false;
  uint64_t prompt = 0, end = 0;  // decode positions [prompt, end)
  bool stopped = false;          // by the request's stop token; figures are up to there

  // Under the engine's definitions. h2o_evict_us is timing.
  EngineMetrics metrics;  // as exported after the last layer call
  h2o::MnnMetrics h2o_metrics;
  double h2o_evict_us = 0;         // of the last decision
  uint64_t h2o_plans_cleared = 0;  // by the shrink rule, before they could be applied

  // Beside them, what happened.
  Measured measured;
  ContentCheck content;
  std::vector<LayerResult> layers;
  std::vector<Resident> steps;  // [0] is after the prefill, then one per decode step
  uint64_t peak_bytes = 0;      // largest total() after any layer call
  std::optional<Speed> speed;   // attention only; nothing without recorded queries
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

}  // namespace kv::lossless
