// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lib/study/gate/cases.h"

namespace kv::mnn {

// The suites of MNN's tests: replays of its lossless runtime, and whole runs of its program
// llm_demo over real prompts, which no replay stands in for.
inline constexpr std::string_view kRuntimeSuite = "runtime", kDemoSuite = "llm_demo";
inline constexpr std::string_view kModes[] = {"probe", "full", "store"};
inline constexpr std::string_view kModeParam = "h2o_lossless_runtime_mode";

// Every parameter of the engine under the name of its meta field.
std::span<const gate::ParamInfo> GateParams();
// The names of the cases of both suites, in their order.
std::span<const std::string_view> CaseNames();
// One of these with its mode, parameters and thresholds.
gate::CaseSpec SuiteCaseOf(std::string_view name);
// The thresholds of the suite's runtime case of this mode.
std::vector<gate::Rule> RulesOf(std::string_view mode);

}  // namespace kv::mnn
