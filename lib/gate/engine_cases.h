// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/gate/config.h"
#include "lib/gate/engine_logs.h"
#include "lib/gate/result.h"

namespace kv::gate {

// The cases of engine logs as cases of the gate, with the outcomes that the logs decide.
std::vector<CaseResult> CasesOfLogs(const EngineVerdict& verdict);

// What the logs say beyond their cases: {path, engine_pass, absent_cases, baseline_noise, notes}.
Json LogsJson(const EngineVerdict& verdict);

// Takes the case of this name out of the logs' cases, with the rules of the config where it gives
// its own. Nothing if the logs have no such case.
std::optional<CaseResult> TakeCase(const CaseSpec& spec, std::vector<CaseResult>& of_logs);

}  // namespace kv::gate
