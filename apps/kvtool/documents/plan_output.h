// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/core/base/output.h"
#include "lib/study/eviction/report.h"

namespace kv {

// Receives the events of a plan one by one.
using EmitPlanEvent = std::function<void(const eviction::PlanEvent&)>;

// Writes kvtool.h2o-plan/1: `head`, which describes the source of the plan and the meaning of its
// events, and the events that `events` emits. The events are never all in memory, because a long
// run with evictions at every step has many.
void WritePlanDocument(const std::string& path, const OutputRules& rules,
                       nlohmann::ordered_json head,
                       const std::function<void(const EmitPlanEvent&)>& events);

}  // namespace kv
