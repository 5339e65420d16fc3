// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "apps/kvtool/console/console.h"
#include "lib/engines/mnn/h2o/report.h"

// What replay-h2o says on the terminal.
namespace kv {

// The paper's schedule: the parameters that nobody chose, with what the trace's length made of
// them.
std::string ScheduleText(const mnn::h2o::ReplayResult& result);
// A line for each policy and target, and the replay's notes.
void PrintRuns(Console& console, const mnn::h2o::ReplayResult& result, bool has_quality);

}  // namespace kv
