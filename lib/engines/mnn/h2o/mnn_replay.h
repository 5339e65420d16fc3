// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The engine's eviction as a replay: its calls, sources of block sums, the rules (EngineRule) of
// its builds, and the settings for it that follow from advice.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"
#include "lib/study/advise/advice.h"
#include "lib/study/eviction/replay.h"

namespace kv::mnn::h2o {

// One layer call that made or applied a plan.
struct MnnCall {
  uint64_t token = 0;  // position of the token decoded
  CallStart start;
  CallEnd end;         // without ema_scores, which are not kept
  KeepPlan planned;    // positions kept by the plan that this call made
  MnnMetrics metrics;  // after the call
};

struct MnnReplay : eviction::EngineRun {
  std::vector<MnnCall> calls;
  MnnMetrics metrics;
  uint64_t meta_previous = 0;
  uint64_t plans_dropped = 0;
  std::vector<uint64_t> capacities;  // capacity of each layer at the end
};

// Supplies the block sums of a call, over the layer's cache at that time.
class BlockSumSource {
 public:
  virtual ~BlockSumSource() = default;
  // Called for every layer call, in and out of range; `position` is that of the new token. Returns
  // nothing if there are no more calls.
  virtual std::optional<std::vector<float>> Sums(const CallStart& start, uint64_t blocks,
                                                 uint64_t position) = 0;
  // Returns false for layers whose sums are unknown. The engine's clock counts their calls, but
  // they get no plan, because it is unknown which tokens would be evicted.
  virtual bool knows(uint32_t layer) const = 0;
};

// Computes block sums from the rows of a trace. `layers` are the traced layers, places[i] is the
// engine's number of layers[i]. Calls of other layers get zeros. That changes no schedule, because
// the times and sizes of evictions do not depend on scores.
std::unique_ptr<BlockSumSource> TraceBlockSums(std::span<const LayerAttention> layers,
                                               std::span<const uint32_t> places,
                                               uint64_t block_tokens, WeightRule weights,
                                               ThreadPool& pool);
// Reads block sums from a recorded stream. Throws kTraceMismatch if the stream and the replayed
// engine disagree.
std::unique_ptr<BlockSumSource> StreamBlockSums(std::unique_ptr<BlockScoreReader> reader,
                                                uint32_t layers, uint64_t prompt);

// Decodes positions [prompt, end), or as many as the source has.
MnnReplay ReplayMnn(const eviction::BlockConfig& config, const MnnGeometry& geometry,
                    MnnRevision revision, uint64_t prompt, uint64_t end, BlockSumSource& source);

using eviction::ReplayRequest;
using eviction::ReplayResult;
using eviction::ReplayRun;

// The papers' policies at the engine's intervals. Each eviction keeps a share of the current cache,
// computed by the floor rule of the final branch.
extern const eviction::EngineRule kIntervals;
extern const eviction::EngineRule kDesign;  // the published description, with its target of 3.5
extern const eviction::EngineRule kMnn;     // the final branch
extern const eviction::EngineRule kMnnR6;   // the measured build

// Returns the rule that --engine names, or null for "exact" without the engine's intervals.
const eviction::EngineRule* FindEngine(std::string_view name, bool at_intervals);

// Replays as eviction::Replay does, and explains in the engine's terms why a run evicted nothing.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress = nullptr);

// Parameters for the engine, and the result of its own decisions with them.
struct AdvisedSettings {
  const advise::Candidate* candidate = nullptr;  // the advice's candidate that they implement
  eviction::BlockConfig config;
  advise::Outcome outcome;
  // Says that the target ends at another ratio, because the engine applies it again at every
  // trigger.
  std::optional<std::string> compounds;
};

// Replays the engine's code with the advised candidates of policy "block" and returns the first one
// within the limits: from the fewest bytes up, or without a limit on the loss from the most bytes
// down. The engine may evict from the end of the shortest prompt on. Returns nothing if no
// candidate is within the limits, or none was of policy "block".
std::optional<AdvisedSettings> AdviseSettings(const advise::Runs& runs,
                                              const advise::AdviceRequest& request,
                                              const advise::Advice& advice, ThreadPool& pool);

}  // namespace kv::mnn::h2o
