// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by replay.cc, replay_notes.cc, compact.cc

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/rope.h"
#include "lib/study/eviction/budget.h"
#include "lib/study/eviction/policy.h"
#include "lib/study/eviction/quality.h"
#include "lib/study/eviction/rule.h"

namespace kv::eviction {

// What an engine decided that decides by itself. Its own reports look into what it derives.
struct EngineRun {
  virtual ~EngineRun() = default;

  std::vector<LayerSchedule> schedules;  // of every layer; empty where nothing is known of one
  std::vector<LayerPlan> plans;          // of every layer; empty if policy "block" has to make them
  // Per step: capacity of all buffers together; those of unknown layers hold every token.
  std::vector<uint64_t> allocated_tokens;
  uint64_t floor_decisions = 0;  // triggers at which sink and recent blocks reach the target
  double reported_ratio = 0;     // by the engine's own counters
};

struct EngineCase;

// An engine, or another clock than that of budgets: when tokens go, and where the engine chooses
// them itself, which. A study knows an engine by such a row alone.
struct EngineRule {
  std::string_view name, text;  // in documents and in titles
  std::string_view schedule;    // that policies follow
  WeightRule weights = WeightRule::kFlashLocal;
  std::string_view ratio_name = {},
                   ratio_remark = {};  // of EngineRun::reported_ratio; empty: there is none
  std::string_view warning = {};       // of every replay of a trace's rows
  BlockConfig defaults = {};
  std::shared_ptr<const EngineRun> (*plan)(const EngineCase& of) = nullptr;
};

struct ReplayRequest {
  // Decides when tokens go. Null: policies hold a budget from the end of the prompt on, as the
  // papers do.
  const EngineRule* engine = nullptr;
  BlockConfig config;  // its target is replaced by each of `targets`
  // Parameters of `config` that the user chose. On a budget the others follow the trace's length.
  std::set<std::string, std::less<>> chosen;
  PaperParameters paper;
  // If set, "streaming" counts positions within its cache, as published: its loss is then measured
  // with keys turned by this rotation to their places in the cache.
  std::optional<ModelRope> re_rotation;
  std::vector<double> targets;      // ratios, >= 1
  std::vector<KeepBudget> budgets;  // instead of ratios
  std::vector<std::string> policies = {"block"};
  std::optional<WeightRule> weights;  // default: that of the engine, without one softmax
  Granularity granularity = Granularity::kLayer;
  uint64_t seed = 0;
  std::optional<uint64_t> prompt_tokens;  // needed if the trace does not say
  bool measure_quality = true;
  // Predict nats by these instead of the trace's gradients.
  std::optional<LayerWeights> sensitivity;
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
  BlockConfig config;                       // sanitised
  std::optional<KeepBudget> budget;         // the budget of every layer
  uint64_t end = 0;                         // of the decode positions, exclusive
  std::vector<LayerSchedule> schedules;     // of every layer
  std::vector<LayerPlan> plans;             // of the traced layers
  std::shared_ptr<const EngineRun> engine;  // null unless the engine itself made these plans
  // The policy that this one amounts to here: what it keeps is what that one would; else empty.
  std::string_view same_as;
  std::string nothing_because;  // why no token went; empty if some did, or nobody says
  std::vector<StepBytes> steps;
  std::vector<LayerQuality> layers;          // of the traced layers; empty without quality
  std::optional<AttentionSummary> quality;   // over all rows of the traced layers
  std::optional<AttentionSummary> evicting;  // over the rows that lose something
  std::optional<PredictedKl> predicted_kl;

  uint64_t triggers() const;
  uint64_t evictions() const;  // those that take keys from some query
  uint64_t floor_dominated() const;
  // The ratio that the user asked for; NaN for a fixed number of tokens.
  double target_ratio() const;
  std::string target_text() const;
  // The policy, with what it amounts to: "snapkv (= window here)".
  std::string policy_text() const;
  const PolicyInfo& info() const { return *FindPolicy(policy); }
  // Full bytes over kept bytes of all layers, at the last step.
  double ratio() const;
  // The same over all steps together. Quality figures are means over steps, so they belong with
  // this.
  double mean_ratio() const;
};

struct ReplayResult {
  const EngineRule* engine = nullptr;
  BlockConfig config;  // with what follows the trace's length, target aside
  PaperParameters paper;
  std::vector<std::string> followed;  // parameters of `config` that follow the trace's length
  WeightRule weights = WeightRule::kSoftmax;
  uint64_t prompt = 0, end = 0;  // decode positions [prompt, end)
  MeasuredRows measured;         // empty without quality
  UndefinedRows undefined;       // of the whole trace
  UndefinedRows undefined_gradients;
  // Set if the trace or the request has what nats are predicted by; a run may still lack a figure.
  std::optional<KlMethod> kl_method;
  std::vector<uint32_t> traced_layers;   // replayed
  std::vector<uint32_t> missing_layers;  // layers of the snapshot without rows
  std::vector<ReplayRun> runs;           // by target, then by policy; on budgets by ratio
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // how to read the figures
};

// What an engine plans for: `config` is sanitised, `attentions` are of the traced layers.
struct EngineCase {
  const ReplayRequest& request;
  const Snapshot& snapshot;
  const AttentionTrace& trace;
  const BlockConfig& config;
  std::span<const LayerAttention> attentions;
  WeightRule weights;
  uint64_t prompt, end;  // decode positions [prompt, end); a recorded stream may end before
  ThreadPool& pool;
};

std::string_view Name(WeightRule rule);  // "exact" or "flash"
// Returns the engine with the rule that its schedule follows, for titles.
std::string_view EngineText(const ReplayResult& result);

// Returns the number of prompt tokens, as the trace or the request says. Throws kUsage, naming the
// flag, if neither does.
uint64_t PromptTokens(const AttentionTrace& trace, const ReplayRequest& request);

// The trace must match the snapshot (RequireMatch). The result is the same for any number of
// threads.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress = nullptr);

// Returns notes that a reader of the figures needs: a policy that amounts to another one here, a
// budget that is only met in whole blocks, rows that the trace lacks.
std::vector<std::string> NotesOf(const ReplayResult& result, const AttentionTrace& trace);

// Returns the policy that a run amounts to: what it keeps is what that one would. Empty if none.
std::string_view SamePolicy(const ReplayRun& run);

// Returns the layers that targets are of: those that may evict and have rows in the trace.
std::vector<uint32_t> EvictingLayers(const ReplayResult& result);

// Returns a run with an expected KL; null if there is none.
const ReplayRun* FirstPredicted(const ReplayResult& result);

// Returns one line about targets that are ratios of the cache as it is at each trigger: it names
// those that end elsewhere, because the ratio was applied more than once or because the floor
// decided.
std::optional<std::string> WhereTargetsEnd(const ReplayResult& result);

// An eviction of kvtool.h2o-plan/1: what a layer or kv head keeps from a position on.
struct PlanEvent {
  uint32_t layer = 0;
  std::optional<uint32_t> kv_head;  // none: all of the layer
  Eviction eviction;
  KeepPlan kept;  // positions
};

// The events of a run, layer by layer within a token.
class PlanCursor {
 public:
  using Emit = std::function<void(const PlanEvent&)>;

  explicit PlanCursor(const ReplayRun& run) : run_(run), next_(run.plans.size()) {}

  // Emits those of the tokens before `end` that were not emitted before.
  void EmitUpTo(uint64_t end, const Emit& emit);

 private:
  uint64_t NextToken(size_t plan) const;

  const ReplayRun& run_;
  std::vector<size_t> next_;  // [plan]
};
// Emits what a run keeps, in the order of time, one by one: evictions at every step make many.
void ForEachPlanEvent(const ReplayRun& run, const PlanCursor::Emit& emit);

// Returns the snapshot with only the rows that the run holds after all of its plans. A layer whose
// kv heads keep the same tokens consists of views into the source, other layers of copies. Cells
// record the original positions, in one group per layer. Rows beyond the trace stay. K keeps the
// rotation of its original position.
Snapshot Compacted(const Snapshot& snapshot, const ReplayRun& run);

// Reads every row of `written` and compares its hash with that of its source row, a check that the
// engine's own gate lacks. Throws kContentDiffers, naming layer, head and tensor. Returns the
// number of (row, head) pairs compared.
uint64_t CheckRows(const Snapshot& source, const ReplayRun& run, const Snapshot& written);

}  // namespace kv::eviction
