// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/engines/mnn/h2o/replay.h"

namespace kv::mnn::h2o {

using Json = nlohmann::ordered_json;

std::string_view Name(WeightRule rule);

// The body of kvtool.h2o/1 after its header: trace, params, runs. Byte counts per step are in it
// only with `detail`.
Json ReportJson(const Snapshot& snapshot, const AttentionTrace& trace, const ReplayRequest& request,
                const ReplayResult& result, bool detail);

// The events of kvtool.h2o-plan/1 in the order of time: what each layer (or kv head) keeps from a
// position on. One by one, because evictions at every step are many.
void ForEachPlanEvent(const ReplayRun& run, const std::function<void(const Json&)>& emit);
Json PlanEvents(const ReplayRun& run);

// One document per event, in the order of time: what was decided, what was applied, and the bytes
// held at the end of each step.
void ForEachEvent(const ReplayResult& result, const std::function<void(const Json&)>& emit);

// Why nothing was evicted, naming the parameter; empty if something was.
std::string WhyNothing(const ReplayResult& result, const ReplayRun& run);

// The self-contained page.
std::string ReportPage(const Snapshot& snapshot, const AttentionTrace& trace,
                       const ReplayResult& result, const std::string& footer);

}  // namespace kv::mnn::h2o
