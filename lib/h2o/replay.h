// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/base/parallel.h"
#include "lib/base/progress.h"
#include "lib/h2o/mnn_replay.h"
#include "lib/h2o/policy.h"
#include "lib/h2o/quality.h"

namespace kv::h2o {

enum class Engine { kExact, kMnn, kMnnR6 };
std::string_view Name(Engine engine);
std::optional<Engine> ParseEngine(std::string_view name);

struct ReplayRequest {
  Engine engine = Engine::kExact;
  Config config;               // its target is replaced by each of `targets`
  std::vector<float> targets;  // ratios, >= 1
  std::vector<std::string> policies = {"block"};
  std::optional<WeightRule> weights;  // default: as the engine (exact: softmax, mnn: flash)
  Granularity granularity = Granularity::kLayer;
  uint64_t seed = 0;
  std::optional<uint64_t> prompt_tokens;  // where the trace does not say
  bool measure_quality = true;
};

// Bytes of K and V that are held when the query at a position attends, all layers together.
struct StepBytes {
  uint64_t token = 0;
  uint64_t full = 0, kept = 0;
  uint64_t allocated = 0;  // by an engine whose buffers never shrink; else = kept
};

// One policy at one target ratio.
struct ReplayRun {
  std::string policy;
  Config config;                         // sanitised
  std::vector<LayerSchedule> schedules;  // of every layer
  std::vector<LayerPlan> plans;          // of the traced layers
  std::optional<MnnReplay> mnn;          // rule "block" of the mnn engines
  std::vector<StepBytes> steps;
  std::vector<LayerQuality> layers;  // of the traced layers; empty without quality
  std::optional<AttentionSummary> quality;   // over all rows of the traced layers
  std::optional<AttentionSummary> evicting;  // over those that lose something

  uint64_t triggers() const;
  uint64_t evictions() const;
  uint64_t floor_dominated() const;
  double target_ratio() const;
  // Full over kept, all layers, at the last step.
  double ratio() const;
  // The same over all steps together: what the quality figures, means over steps, go with.
  double mean_ratio() const;
};

struct ReplayResult {
  Engine engine = Engine::kExact;
  WeightRule weights = WeightRule::kSoftmax;
  uint64_t prompt = 0, end = 0;          // decode positions [prompt, end)
  std::vector<uint32_t> traced_layers;   // replayed
  std::vector<uint32_t> missing_layers;  // in the snapshot, without rows
  std::vector<ReplayRun> runs;           // targets outer, policies inner
  std::vector<std::string> warnings;
};

// Decode steps: where prefill ends, by the trace or by the request. Throws kUsage naming the flag.
uint64_t PromptTokens(const AttentionTrace& trace, const ReplayRequest& request);

// The trace must match the snapshot (RequireMatch). Equal results for any number of threads.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv::h2o
