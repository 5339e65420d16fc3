// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/engines/mnn/logs/logs.h"
#include "lib/study/gate/config.h"
#include "lib/study/gate/result.h"

namespace kv::gate {

// The cases of engine logs as cases of the gate, with the outcomes that the logs decide.
std::vector<CaseResult> CasesOfLogs(const EngineVerdict& verdict);

// What the logs say beyond their cases: {path, engine_pass, absent_cases, baseline_noise, notes}.
Json LogsJson(const EngineVerdict& verdict);

// Takes the case of this name out of the logs' cases. Where the config gives its own rules, they
// stand beside the engine's evidence, in place of the thresholds. Nothing if the logs have no such
// case.
std::optional<CaseResult> TakeCase(const CaseSpec& spec, std::vector<CaseResult>& of_logs);

// The same for a case that was replayed: what the logs at `path` say of it is judged with it.
void AddFromLogs(const CaseSpec& spec, std::string_view path, std::vector<CaseResult>& of_logs,
                 CaseResult& replayed);

}  // namespace kv::gate
