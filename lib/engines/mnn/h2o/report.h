// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/engines/mnn/h2o/replay.h"
#include "lib/report/html.h"

namespace kv::mnn::h2o {

using Json = nlohmann::ordered_json;

std::string_view Name(WeightRule rule);

// Returns the body of kvtool.h2o/1, without its header: trace, params, runs. Contains byte counts
// per step only if `detail` is set. page.cc implements ReportPage, report.cc the rest.
Json ReportJson(const Snapshot& snapshot, const AttentionTrace& trace, const ReplayRequest& request,
                const ReplayResult& result, bool detail);

// Emits the events of kvtool.h2o-plan/1 in the order of time. Each says what a layer or kv head
// keeps from a position on. They come one by one, because evictions at every step make many.
void ForEachPlanEvent(const ReplayRun& run, const std::function<void(const Json&)>& emit);

// Emits one document per event, in the order of time: decisions, applied plans, and the bytes held
// at the end of each step.
void ForEachEvent(const ReplayResult& result, const std::function<void(const Json&)>& emit);

// Says why nothing was evicted, and names the parameter; empty if something was.
std::string WhyNothing(const ReplayResult& result, const ReplayRun& run);

// Returns the report as a self-contained HTML page.
report::Page ReportPage(const Snapshot& snapshot, const AttentionTrace& trace,
                        const ReplayResult& result, const std::string& footer);

}  // namespace kv::mnn::h2o
