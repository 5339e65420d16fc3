// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/line/options.h"
#include "lib/study/gate/engine.h"

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
  gate::LogsInput Resolve() const;
  // The engine that reads the logs.
  const gate::Engine& engine() const;
  // The same options as words of a command line.
  void AddWords(std::vector<std::string>& words) const;
};

}  // namespace kv
