// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/commands/gate/gate_inputs.h"
#include "apps/kvtool/commands/gate/gate_log_options.h"
#include "apps/kvtool/console/progress.h"
#include "lib/study/gate/config.h"
#include "lib/study/gate/result.h"

namespace kv {

// Runs the cases of a config: by replay, by comparison, or out of an engine's logs.
struct GateCases {
  const EngineLogOptions& logs;
  const std::vector<std::string>& only;  // names of cases; empty: all
  bool loses_content;                    // --inject-fault

  // Appends the results in the order of the config, and prints their warnings. A config without
  // cases gets those of the logs. Throws what GateInputs::Open and the engine's readers throw.
  void Run(Context& context, gate::Config& config, GateInputs& inputs,
           gate::GateResult& result) const;

 private:
  std::vector<gate::CaseResult> ReadLogs(gate::Config& config, gate::GateResult& result) const;
  std::optional<gate::CaseResult> FromLogs(const gate::CaseSpec& spec,
                                           std::vector<gate::CaseResult>& of_logs) const;
  gate::CaseResult Replay(const Context& context, const gate::CaseSpec& spec,
                          GateInputs::Pair& pair, ThreadPool& pool, ProgressLine& progress) const;
};

}  // namespace kv
