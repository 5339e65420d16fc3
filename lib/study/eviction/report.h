// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by report.cc, quality_report.cc, replay_page.cc

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "lib/core/snapshot/keep_plan.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/eviction/replay.h"

namespace kv::eviction {

// An eviction of kvtool.h2o-plan/1: what a layer or kv head keeps from a position on.
struct PlanEvent {
  uint32_t layer = 0;
  std::optional<uint32_t> kv_head;  // none: all of the layer
  Eviction eviction;
  KeepPlan kept;  // positions
};
const Fields<PlanEvent>& PlanEventFields();
// Those but the position, for events that have one of their own.
const Fields<PlanEvent>& PlanEventPartFields();

// [first, count] of each range.
std::vector<std::array<uint64_t, 2>> RangesOf(const KeepPlan& plan);

// What a replay's document says. The engine that decided adds its own tables.
struct Report {
  const Snapshot& snapshot;
  const AttentionTrace& trace;
  const ReplayRequest& request;
  const ReplayResult& result;
  bool detail = false;  // whether to list the bytes of every step
};
const Fields<Report>& TraceFields();
const Fields<PaperParameters>& PaperFields();
const Fields<MeasuredRows>& MeasuredFields();
const Fields<StepBytes>& BytesFields();  // but for the token

// A run of a report.
struct Run {
  const Report& report;
  const ReplayRun& run;
};
std::vector<Run> RunsOf(const Report& of);
// `params` and `engine_report` are under the names of the engine.
Fields<Run> RunFields(const Fields<BlockConfig>& params, Fields<Run>::Field engine_report);

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

// What people read, on the console and in the page: a row for each run.
TextTable RunTable(const ReplayResult& result);
// Returns the report as a self-contained HTML page.
report::Page ReportPage(const Snapshot& snapshot, const AttentionTrace& trace,
                        const ReplayResult& result);

const Fields<Calibration>& CalibrationFields();
const Fields<PredictedKl>& PredictedKlFields(Cause cause);

const Fields<AttentionSummary>& AttentionFields();

// The rows of a run that lose something.
struct EvictingRows {
  const AttentionSummary& summary;
  std::vector<uint32_t> layers;
};

const Fields<EvictingRows>& EvictingFields();
// Nothing if quality was not measured.
std::optional<EvictingRows> EvictingOf(const ReplayRun& run);

// The figures of a query head.
struct Head {
  size_t head;
  const AttentionSummary &all, &evicting;
};

const Fields<Head>& HeadFields();

// Means over a tenth of the decode steps, which show whether the loss grows.
struct Decile {
  uint64_t first_step = 0, steps = 0;
  double mass = 0;
  std::optional<double> output_error;
};

const Fields<Decile>& DecileFields();
std::vector<Decile> DecilesOf(const std::vector<LayerQuality>& layers,
                              const MeasuredRows& measured);

}  // namespace kv::eviction
