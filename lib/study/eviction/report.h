// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by report.cc, replay_page.cc

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/snapshot/keep_plan.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/eviction/replay.h"

namespace kv::eviction {

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
  bool detail = false;     // whether to list the bytes of every step
  std::string model = {};  // its name, for captions; empty: the snapshot's own
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
// The fields of a run that its report adds nothing to; those with a heading are its columns.
const Fields<ReplayRun>& OwnFields();
std::vector<Run> RunsOf(const Report& of);
// `params` and `engine_report` are under the names of the engine.
Fields<Run> RunFields(const Fields<BlockConfig>& params, Fields<Run>::Field engine_report);

// What people read, on the console and in the page: a row for each run.
TextTable RunTable(const ReplayResult& result);
// Returns the report as a self-contained HTML page.
report::Page ReportPage(const Report& of);

const Fields<Calibration>& CalibrationFields();
const Fields<PredictedKl>& PredictedKlFields(Cause cause);

}  // namespace kv::eviction
