// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/core/base/output.h"
#include "lib/study/eviction/report.h"

namespace kv {

// Takes the events of a plan one by one.
using EmitPlanEvent = std::function<void(const eviction::PlanEvent&)>;

// Writes kvtool.h2o-plan/1: `head`, which says whose plan it is, what its events mean, and the
// events that `events` emits. They never stand in memory together: evictions at every step of a
// long run are many.
void WritePlanDocument(const std::string& path, const OutputRules& rules,
                       nlohmann::ordered_json head,
                       const std::function<void(const EmitPlanEvent&)>& events);

}  // namespace kv
