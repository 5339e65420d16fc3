// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The document, tables and page of a replay.
#pragma once  // implemented by report.cc, replay_page.cc

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/snapshot/select.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/eviction/replay.h"

namespace kv::eviction {

const Fields<PlanEvent>& PlanEventFields();
// The fields of an event except its position, for events that have their own.
const Fields<PlanEvent>& PlanEventPartFields();

// Returns [first, count] of each range.
std::vector<std::array<uint64_t, 2>> ListRanges(const KeepPlan& plan);

// Data of a replay's document. An engine that decides adds its own tables.
struct Report {
  const Snapshot& snapshot;
  const AttentionTrace& trace;
  const ReplayRequest& request;
  const ReplayResult& result;
  bool detail = false;     // true: list the bytes of every step
  std::string model = {};  // model name for captions; empty: the snapshot's own
};
const Fields<Report>& TraceFields();
const Fields<PaperParameters>& PaperFields();
const Fields<MeasuredRows>& MeasuredFields();
const Fields<StepBytes>& BytesFields();  // All fields except the token.

// A run of a report.
struct Run {
  const Report& report;
  const ReplayRun& run;
};
// The fields of a run that do not depend on its report; those with a heading are columns of tables.
const Fields<ReplayRun>& OwnFields();
std::vector<Run> ListRuns(const Report& of);
// `params` and `engine_report` get the names of the engine.
Fields<Run> RunFields(const Fields<BlockConfig>& params, Fields<Run>::Field engine_report);

// Returns a table for the console and the page, with a row for each run.
TextTable RunTable(const ReplayResult& result);
// Returns the report as a self-contained HTML page.
report::Page ReportPage(const Report& of);

const Fields<Calibration>& CalibrationFields();
const Fields<PredictedKl>& PredictedKlFields(Cause cause);

}  // namespace kv::eviction
