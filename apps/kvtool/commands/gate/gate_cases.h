// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/commands/gate/gate_inputs.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/line/options.h"
#include "lib/engines/mnn/logs/logs.h"

namespace kv {

// --engine-logs and the options of the original analyzer, under its names.
struct EngineLogOptions {
  std::string path, return_codes, offline, online, bench_log;
  std::vector<std::pair<std::string, std::string>> analyzer;  // name with underscores, value

  void Declare(CommandLine& line);
  void Files(CommandFiles& files) const { files.Reads({path, offline, online, bench_log}); }
  bool given() const { return !path.empty(); }
  // Throws kUsage where options of the analyzer stand without logs.
  void RequireLogs() const;
  mnn::logs::EngineLogsInput Resolve() const;
  // The same options as words of a command line.
  void AddWords(std::vector<std::string>& words) const;
};

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
