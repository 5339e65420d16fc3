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
inline constexpr std::string_view kBaselineCase = "runtime_baseline";  // nothing is compressed
inline constexpr std::string_view kCaseNames[] = {kBaselineCase,   "runtime_probe",
                                                  "runtime_full",  "runtime_store",
                                                  "llm_demo_full", "llm_demo_store"};

// Every parameter of the engine under the name of its meta field.
std::span<const gate::ParamInfo> GateParams();
// One of kCaseNames with its mode, parameters and thresholds.
gate::CaseSpec SuiteCaseOf(std::string_view name);
// The thresholds of the suite's runtime case of this mode.
std::vector<gate::Rule> RulesOf(std::string_view mode);

}  // namespace kv::mnn
