// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The replay of MNN's decoding with eviction and the lossless path.
#pragma once  // implemented by replay.cc, report.cc

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
#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/dense/score.h"
#include "lib/study/eviction/budget.h"

namespace kv::mnn::runtime {

// The runtime and eviction that a replay uses: MNN's own runtime, event for event, with the
// eviction of its current code (kMnn) or of the build that its authors measured (kMnnR6); or the
// design behind it, which design_runtime.cc describes.
enum class Engine { kMnn, kDesign, kMnnR6 };
std::string_view Name(Engine engine);
std::optional<Engine> ParseEngine(std::string_view name);

struct ReplayRequest {
  Engine engine = Engine::kMnn;
  Config lossless;
  bool h2o_enable = false;
  // The lossless path uses its interval and trigger length even without H2O.
  eviction::BlockConfig h2o;
  WeightRule weights = WeightRule::kFlashLocal;
  std::optional<uint64_t> prompt_tokens;  // required if the trace does not record it
  std::optional<uint64_t> decode_tokens;  // number of tokens to decode; by default to the end
  // With kDesign, the memory for decoded ranges; by default a sixteenth of the whole cache.
  std::optional<uint64_t> cache_bytes;
  // True: the result lists events. Results of workers are taken where the engine waits for them, at
  // the end of each token, and the queue is replayed as if the workers were as slow as possible. So
  // no byte count or queue figure depends on when a worker finished.
  bool keep_events = false;
  const RangeCodec* codec = nullptr;  // null: the gear codec
  bool damage = false;                // flips a bit of the rows held at the end; for tests
  std::stop_token stop;               // ends the replay between two layer calls
};

struct LayerResult : LayerRecord {
  uint32_t layer = 0;         // layer number in the snapshot
  bool in_h2o_range = false;  // by the range alone, whether H2O is on or not
  uint64_t length = 0;        // tokens held at the end
  uint64_t cold_tokens = 0;   // tokens that are neither sink nor recent
  Resident end;
};

struct Speed {
  uint64_t tokens = 0;
  double seconds = 0;            // time in layer calls, without work that only a replay does
  double attention_seconds = 0;  // the part of `seconds` for scores, softmax and values

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
  bool stopped = false;          // true if ReplayRequest::stop ended the replay early, at `end`

  uint64_t cache_bytes = 0;  // memory for decoded ranges, with kDesign

  // Figures by the engine's definitions.
  EngineMetrics metrics;  // as exported after the last layer call
  mnn::h2o::MnnMetrics h2o_metrics;
  double h2o_evict_us = 0;  // duration of the last decision
  // number of plans that the shrink rule dropped before they were applied
  uint64_t h2o_plans_cleared = 0;

  // True counts of the same work.
  Measured measured;
  ContentCheck content;
  std::vector<LayerResult> layers;
  std::vector<eviction::LayerPlan> plans;  // positions left by H2O's applied plans, by layer
  std::vector<Resident> steps;             // [0] is after the prefill, then one per decode step
  uint64_t peak_bytes = 0;                 // largest total() after any layer call
  std::optional<Speed> speed;              // attention only; empty without recorded queries
  std::string no_speed_reason;
  std::vector<Event> events;  // empty unless the request asks for them
  std::vector<std::string> warnings;

  // Returns the bytes of the whole sequence's K and V over those that are resident at the end.
  double whole_model_ratio() const;
};

// Replays the decoding of a cache. The first tokens are the prompt; then each step adds one token,
// up to the snapshot's length. Each step visits the layers in order, and each layer call does what
// the engine does: restore what was dropped, apply H2O's plan, append, attend, let H2O decide, do
// the lossless step. Without a trace all tokens have the same score, which changes which tokens H2O
// keeps but not how many. Throws kUsage if the prompt is missing or as long as the cache, and what
// RequireMatch throws.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace* trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress = nullptr);

// The result of replay-lossless. `detail` adds the bytes of every step; without `timing` there is
// no speed, and RemoveTimes removes all other times from the document.
struct Report {
  const ReplayResult& result;
  bool detail = false;
  bool timing = true;
};
const Fields<Report>& ReportFields();
// Returns the fields of an event; events are in the order of time.
const Fields<Event>& EventFields();
void RemoveTimes(Value& document);

// Returns the report as a self-contained HTML page.
report::Page ReportPage(const std::string& name, const ReplayResult& result);

// Sums over the layers, which several outputs show.
struct Totals {
  uint64_t held_tokens = 0, cold_tokens = 0;  // counted once in each layer
};
Totals SumTotals(const ReplayResult& result);

// Returns why nothing was encoded, naming the parameter; "" if something was.
std::string WhyNothing(const ReplayResult& result);

}  // namespace kv::mnn::runtime
