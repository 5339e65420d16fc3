// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>

#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "lib/study/eviction/report.h"

namespace kv::mnn::h2o {

using eviction::Report;
using eviction::Run;

// Returns the fields of kvtool.h2o apart from its inputs.
const Fields<Report>& ReportFields();
const Fields<MnnMetrics>& MetricsFields();

// Returns the engine's decisions in a run; null if it made none.
inline const MnnReplay* FindMnnReplay(const ReplayRun& run) {
  return static_cast<const MnnReplay*>(run.engine.get());
}

// A line of kvtool.h2o-event/1: a decision or an applied plan of the engine (call), an eviction of
// a policy of engine exact (eviction), or the bytes held at the end of a step.
struct ReplayEvent {
  const ReplayRun& run;
  std::string_view type;
  uint64_t token = 0;
  const eviction::StepBytes* step = nullptr;
  const MnnCall* call = nullptr;
  const eviction::PlanEvent* eviction = nullptr;
};
const Fields<ReplayEvent>& ReplayEventFields();
// Emits the events of all runs, one run after the other, each in the order of time.
void ForEachEvent(const ReplayResult& result, const std::function<void(const ReplayEvent&)>& emit);

}  // namespace kv::mnn::h2o
