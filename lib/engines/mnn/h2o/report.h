// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <string>

#include "lib/engines/mnn/h2o/replay.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/eviction/report.h"

namespace kv::mnn::h2o {

std::string_view Name(WeightRule rule);

// What kvtool.h2o says beside its inputs. page.cc implements
// RunTable and ReportPage, events.cc what is of events, and report.cc the rest.
struct Report {
  const Snapshot& snapshot;
  const AttentionTrace& trace;
  const ReplayRequest& request;
  const ReplayResult& result;
  bool detail = false;  // whether to list the bytes of every step
};
const Fields<Report>& ReportFields();
const Fields<StepBytes>& BytesFields();  // but for the token
const Fields<MnnMetrics>& MetricsFields();

// Emits what a run keeps, in the order of time, one by one: evictions at every step make many.
void ForEachPlanEvent(const ReplayRun& run,
                      const std::function<void(const eviction::PlanEvent&)>& emit);

// A line of kvtool.h2o-event/1: a decision or an applied plan of the engine (call), what a policy
// of engine exact lets go (eviction), or the bytes held at the end of a step.
struct ReplayEvent {
  const ReplayRun& run;
  std::string_view type;
  uint64_t token = 0;
  const StepBytes* step = nullptr;
  const MnnCall* call = nullptr;
  const eviction::PlanEvent* eviction = nullptr;
};
const Fields<ReplayEvent>& ReplayEventFields();
// Emits the events of all runs, of each run in the order of time.
void ForEachEvent(const ReplayResult& result, const std::function<void(const ReplayEvent&)>& emit);

// What people read, on the console and in the page: a row for each run.
TextTable RunTable(const ReplayResult& result);

// Says why nothing was evicted, and names the parameter; empty if something was.
std::string WhyNothing(const ReplayResult& result, const ReplayRun& run);

// Returns the report as a self-contained HTML page.
report::Page ReportPage(const Snapshot& snapshot, const AttentionTrace& trace,
                        const ReplayResult& result);

}  // namespace kv::mnn::h2o
