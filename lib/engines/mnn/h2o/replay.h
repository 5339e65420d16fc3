// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/rope.h"
#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "lib/study/eviction/budget.h"
#include "lib/study/eviction/plan_layer.h"
#include "lib/study/eviction/policy.h"
#include "lib/study/eviction/predicted_kl.h"
#include "lib/study/eviction/quality.h"

namespace kv::mnn::h2o {

// replay_run.cc implements the methods of ReplayRun, replay.cc everything else here.
enum class Engine { kExact, kDesign, kMnn, kMnnR6 };
std::string_view Name(Engine engine);
std::optional<Engine> ParseEngine(std::string_view name);
// Returns the parameters that an engine starts from: MNN's defaults, and the published target of
// 3.5 where the text is followed.
eviction::BlockConfig DefaultsOf(Engine engine);

// When the policies of engine exact evict.
enum class Clock {
  kPaper,  // hold a budget from the end of the prompt on, as the papers do
  kMnn,    // at the engine's intervals, down to a ratio of the cache as it is then
};
std::string_view Name(Clock clock);

struct ReplayRequest {
  Engine engine = Engine::kExact;
  Clock clock = Clock::kPaper;   // of engine exact; the others have their own
  eviction::BlockConfig config;  // its target is replaced by each of `targets`
  // Parameters of `config` that the user chose. On a budget the others follow the trace's length.
  std::set<std::string, std::less<>> chosen;
  eviction::PaperParameters paper;
  // If set, "streaming" counts positions within its cache, as published: its loss is then measured
  // with keys turned by this rotation to their places in the cache.
  std::optional<ModelRope> re_rotation;
  std::vector<double> targets;                // ratios, >= 1
  std::vector<eviction::KeepBudget> budgets;  // instead of ratios
  std::vector<std::string> policies = {"block"};
  std::optional<WeightRule> weights;  // default: that of the engine (exact: softmax, others: flash)
  eviction::Granularity granularity = eviction::Granularity::kLayer;
  uint64_t seed = 0;
  std::optional<uint64_t> prompt_tokens;  // needed if the trace does not say
  bool measure_quality = true;
  // Predict nats by these instead of the trace's gradients.
  std::optional<eviction::LayerWeights> sensitivity;
  uint64_t quality_rows = 0;  // measure at most this many rows, chosen by `seed`; 0: all
};

// Bytes of K and V that all layers together hold when the query at a position attends or, on a
// budget, at the end of its step.
struct StepBytes {
  uint64_t token = 0;
  uint64_t full = 0, kept = 0;
  uint64_t allocated = 0;  // more than `kept` in an engine whose buffers never shrink
};

// One policy at one target ratio.
struct ReplayRun {
  std::string policy;
  eviction::BlockConfig config;                    // sanitised
  std::optional<eviction::KeepBudget> budget;      // the budget of every layer
  uint64_t end = 0;                                // of the decode positions, exclusive
  std::vector<eviction::LayerSchedule> schedules;  // of every layer
  std::vector<eviction::LayerPlan> plans;          // of the traced layers
  std::optional<MnnReplay> mnn;                    // policy "block" of engines other than exact
  // The policy that this one amounts to here: what it keeps is what that one would; else empty.
  std::string_view same_as;
  std::vector<StepBytes> steps;
  std::vector<eviction::LayerQuality> layers;  // of the traced layers; empty without quality
  std::optional<AttentionSummary> quality;     // over all rows of the traced layers
  std::optional<AttentionSummary> evicting;    // over the rows that lose something
  std::optional<eviction::PredictedKl> predicted_kl;

  uint64_t triggers() const;
  uint64_t evictions() const;  // those that take keys from some query
  uint64_t floor_dominated() const;
  // The ratio that the user asked for; NaN for a fixed number of tokens.
  double target_ratio() const;
  std::string target_text() const;
  // The policy, with what it amounts to: "snapkv (= window here)".
  std::string policy_text() const;
  // Full bytes over kept bytes of all layers, at the last step.
  double ratio() const;
  // The same over all steps together. Quality figures are means over steps, so they belong with
  // this.
  double mean_ratio() const;
};

struct ReplayResult {
  Engine engine = Engine::kExact;
  Clock clock = Clock::kMnn;
  eviction::BlockConfig config;  // with what follows the trace's length, target aside
  eviction::PaperParameters paper;
  std::vector<std::string> followed;  // parameters of `config` that follow the trace's length
  WeightRule weights = WeightRule::kSoftmax;
  uint64_t prompt = 0, end = 0;     // decode positions [prompt, end)
  eviction::MeasuredRows measured;  // empty without quality
  UndefinedRows undefined;          // of the whole trace
  UndefinedRows undefined_gradients;
  // Set if the trace or the request has what nats are predicted by; a run may still lack a figure.
  std::optional<eviction::KlMethod> kl_method;
  std::vector<uint32_t> traced_layers;   // replayed
  std::vector<uint32_t> missing_layers;  // layers of the snapshot without rows
  std::vector<ReplayRun> runs;           // by target, then by policy; on budgets by ratio
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // how to read the figures
};

// Returns the engine with the rule that its schedule follows, for titles.
std::string EngineText(const ReplayResult& result);

// Returns the number of prompt tokens, as the trace or the request says. Throws kUsage, naming the
// flag, if neither does.
uint64_t PromptTokens(const AttentionTrace& trace, const ReplayRequest& request);

// The trace must match the snapshot (RequireMatch). The result is the same for any number of
// threads.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv::mnn::h2o
