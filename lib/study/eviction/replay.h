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

// Decisions of an engine that decides by itself; the engine derives a struct for its own reports.
struct EngineRun {
  virtual ~EngineRun() = default;

  std::vector<LayerSchedule> schedules;  // one per layer; empty where decisions are unknown
  std::vector<LayerPlan> plans;          // one per layer; empty if policy "block" has to make them
  // Per step: capacity of all buffers together; layers without known decisions hold every token.
  std::vector<uint64_t> allocated_tokens;
  // triggers at which sink and recent blocks already reach the target
  uint64_t floor_decisions = 0;
  double reported_ratio = 0;  // ratio by the engine's own counters
};

struct EngineCase;

// The rule by which an engine times its evictions and, if it chooses the tokens itself, chooses
// them. Other timings are described in the same way. Studies know engines only through such rows.
struct EngineRule {
  std::string_view name, text;  // the names in documents and in titles
  std::string_view schedule;    // name of the schedule that policies follow
  WeightRule weights = WeightRule::kFlashLocal;
  std::string_view ratio_name = {},
                   // explains EngineRun::reported_ratio; empty without one
      ratio_remark = {};
  std::string_view warning = {};  // printed with each replay of a trace's rows
  BlockConfig defaults = {};
  std::shared_ptr<const EngineRun> (*plan)(const EngineCase& of) = nullptr;
};

struct ReplayRequest {
  // Decides when tokens are evicted. Null: policies hold a budget from the end of the prompt on, as
  // the papers do.
  const EngineRule* engine = nullptr;
  BlockConfig config;  // its target is replaced by each of `targets`
  // Parameters of `config` that the user chose. On a budget the others follow the trace's length.
  std::set<std::string, std::less<>> chosen;
  PaperParameters paper;
  // If set, "streaming" counts positions within its cache, as published: its loss is then measured
  // with keys rotated to their places in the cache.
  std::optional<ModelRope> re_rotation;
  std::vector<double> targets;      // ratios, >= 1
  std::vector<KeepBudget> budgets;  // used instead of ratios
  std::vector<std::string> policies = {"block"};
  std::optional<WeightRule> weights;  // default: the engine's rule, or a softmax without an engine
  Granularity granularity = Granularity::kLayer;
  uint64_t seed = 0;
  std::optional<uint64_t> prompt_tokens;  // required if the trace does not record it
  bool measure_quality = true;
  // Predicts nats by these weights instead of the trace's gradients.
  std::optional<LayerWeights> sensitivity;
  uint64_t quality_rows = 0;  // maximum number of measured rows, chosen by `seed`; 0: all
};

// Bytes of K and V that all layers together hold when the query at a position attends or, on a
// budget, at the end of its step.
struct StepBytes {
  uint64_t token = 0;
  uint64_t full = 0, kept = 0;
  uint64_t allocated = 0;  // exceeds `kept` for an engine whose buffers never shrink
};

// One policy at one target ratio.
struct ReplayRun {
  std::string policy;
  BlockConfig config;                       // sanitised
  std::optional<KeepBudget> budget;         // the budget that every layer has
  uint64_t end = 0;                         // end of the decode positions, exclusive
  std::vector<LayerSchedule> schedules;     // schedules of every layer
  std::vector<LayerPlan> plans;             // plans of the traced layers
  std::shared_ptr<const EngineRun> engine;  // null unless the engine itself made these plans
  // The policy that would keep the same tokens here; empty if none.
  std::string_view same_as;
  // why no token was evicted; empty if some were, or if the reason is unknown
  std::string nothing_because;
  std::vector<StepBytes> steps;
  std::vector<LayerQuality> layers;          // figures of the traced layers; empty without quality
  std::optional<AttentionSummary> quality;   // over all rows of the traced layers
  std::optional<AttentionSummary> evicting;  // over the rows that evict
  std::optional<PredictedKl> predicted_kl;

  uint64_t triggers() const;
  uint64_t evictions() const;  // evictions that take a key from some query
  uint64_t floor_dominated() const;
  // Returns the ratio that the user asked for; NaN for a fixed number of tokens.
  double target_ratio() const;
  std::string target_text() const;
  // Returns the policy's name with the policy that it equals: "snapkv (= window here)".
  std::string policy_text() const;
  const PolicyInfo& info() const { return *FindPolicy(policy); }
  // Returns full bytes over kept bytes of all layers, at the last step.
  double ratio() const;
  // Returns full bytes over kept bytes, both summed over all steps. Compare quality figures with
  // this ratio, because they are means over steps, too.
  double mean_ratio() const;
};

struct ReplayResult {
  const EngineRule* engine = nullptr;
  BlockConfig config;  // includes parameters that follow the trace's length, but not the target
  PaperParameters paper;
  std::vector<std::string> followed;  // parameters of `config` that follow the trace's length
  WeightRule weights = WeightRule::kSoftmax;
  uint64_t prompt = 0, end = 0;  // decode positions [prompt, end)
  MeasuredRows measured;         // empty without quality
  UndefinedRows undefined;       // undefined rows of the whole trace
  UndefinedRows undefined_gradients;
  // Set if the trace or the request allows a prediction in nats; a single run may still lack it.
  std::optional<KlMethod> kl_method;
  std::vector<uint32_t> traced_layers;   // replayed
  std::vector<uint32_t> missing_layers;  // layers of the snapshot without rows
  std::vector<ReplayRun> runs;           // by target, then by policy; on budgets by ratio
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // notes on how to read the figures
};

// Input of an engine's planning: `config` is sanitised, `attentions` are of the traced layers.
struct EngineCase {
  const ReplayRequest& request;
  const Snapshot& snapshot;
  const AttentionTrace& trace;
  const BlockConfig& config;
  std::span<const LayerAttention> attentions;
  WeightRule weights;
  uint64_t prompt, end;  // decode positions [prompt, end); a recorded stream may end earlier
  ThreadPool& pool;
};

std::string_view Name(WeightRule rule);  // "exact" or "flash"
// Returns the engine with the rule that its schedule follows, for titles.
std::string_view EngineText(const ReplayResult& result);

// Returns the number of prompt tokens from the trace or the request. Throws kUsage, naming the
// flag, if neither has it.
uint64_t PromptTokens(const AttentionTrace& trace, const ReplayRequest& request);

// The trace must match the snapshot (RequireMatch). The result is the same for any number of
// threads.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress = nullptr);

// Returns notes that a reader of the figures needs: a policy that equals another one here, a budget
// that can only be met in whole blocks, rows that the trace lacks.
std::vector<std::string> WriteNotes(const ReplayResult& result, const AttentionTrace& trace);

// Returns the policy that would keep the same tokens as this run; "" if none.
std::string_view SamePolicy(const ReplayRun& run);

// Returns the layers that targets apply to: those that may evict and have rows in the trace.
std::vector<uint32_t> EvictingLayers(const ReplayResult& result);

// Returns a run with an expected KL; null if there is none.
const ReplayRun* FirstPredicted(const ReplayResult& result);

// Returns one line on targets that are ratios of the cache at each trigger. It names those that
// runs miss because the ratio was applied more than once or because the floor decided.
std::optional<std::string> WhereTargetsEnd(const ReplayResult& result);

// An eviction of kvtool.h2o-plan/1: the positions that a layer or kv head keeps from here on.
struct PlanEvent {
  uint32_t layer = 0;
  std::optional<uint32_t> kv_head;  // empty: the whole layer
  Eviction eviction;
  KeepPlan kept;  // positions
};

// Walks the events of a run, layer by layer within a token.
class PlanCursor {
 public:
  using Emit = std::function<void(const PlanEvent&)>;

  explicit PlanCursor(const ReplayRun& run) : run_(run), next_(run.plans.size()) {}

  // Emits the events of tokens before `end` that were not emitted yet.
  void EmitUpTo(uint64_t end, const Emit& emit);

 private:
  uint64_t NextToken(size_t plan) const;

  const ReplayRun& run_;
  std::vector<size_t> next_;  // [plan]
};
// Emits the events of a run one by one, in the order of time, because evictions at every step make
// many.
void ForEachPlanEvent(const ReplayRun& run, const PlanCursor::Emit& emit);

// Returns the snapshot with only the rows that the run holds after all of its plans. A layer whose
// kv heads keep the same tokens consists of views into the source, other layers of copies. Cells
// record the original positions, in one group per layer. Rows beyond the trace are kept. K keeps
// the rotation of its original position.
Snapshot Compacted(const Snapshot& snapshot, const ReplayRun& run);

// Reads every row of `written` and compares its hash with that of its source row, a check that the
// engine's own gate lacks. Throws kContentDiffers, naming layer, head and tensor. Returns the
// number of (row, head) pairs compared.
uint64_t CheckRows(const Snapshot& source, const ReplayRun& run, const Snapshot& written);

}  // namespace kv::eviction
