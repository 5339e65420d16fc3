// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "apps/kvtool/console/console.h"
#include "lib/engines/infinilm/csrc_outcome.h"
#include "lib/engines/infinilm/quality.h"

namespace kv {

// How `replay-mlp` words its plan and what the step costs.

nlohmann::ordered_json PlanJson(const StepPlan& plan);
std::string PlanText(const StepPlan& plan);

nlohmann::ordered_json CsrcJson(const CsrcOutcome& outcome);
// "compresses to 5 tokens", "returns 20 and has overwritten layers 0-3: ..."
std::string CsrcText(const CsrcOutcome& outcome);

nlohmann::ordered_json QualityJson(const StepQuality& quality);
std::string QualityText(const StepQuality& quality);

}  // namespace kv
