// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/engines/mnn/logs/text.h"
#include "lib/study/gate/result.h"

namespace kv::mnn::logs {

// A verdict over what the real engine wrote: its own numbers and verdict, reproduced, and beside
// them what the same logs really say.

struct EngineLogsInput {
  // The output of the engine's suite (case folders, *.console.log), or a folder or file of bench
  // logs: llm_bench tables or JSON, CSV, metrics jsonl, llm_demo stdout.
  std::filesystem::path path;
  // How the path is printed in reports; empty: as given.
  std::string shown_as = {};
  // The analyzer's options by its names, over what the suite passes for a case.
  std::vector<std::pair<std::string, std::string>> options = {};
  // Return codes of the cases; a case that is not named returned 0.
  std::map<std::string, int64_t> return_codes = {};
  // Offline estimates for a folder of bench logs; a suite folder has its own.
  std::filesystem::path offline_lossless_json = {}, offline_lossless_online_json = {};
  std::filesystem::path bench_stdout_log = {};
};

// How much the engine's speed varies when nothing is changed: repeated baselines of the suite.
struct BaselineNoise {
  std::vector<double> tokens_per_second = {};

  double mean() const;
  // Half the spread of the values over their mean; nothing from fewer than two.
  std::optional<double> relative() const;
};

struct EngineVerdict {
  std::string path;          // as printed
  bool engine_pass = false;  // the original's overall_pass
  gate::Status status = gate::Status::kNotRun;
  std::vector<gate::CaseResult> cases;    // without the engine of their specs
  std::vector<std::string> absent_cases;  // of the suite's six: nothing was there to judge
  BaselineNoise baseline_noise;           // of the runtime cases
  std::vector<std::string> notes = {};
};

// Throws kOpenFailed, kBadText, kLimit, kMissingRecord (nothing to judge), kUsage (options).
EngineVerdict AnalyzeEngineLogs(const EngineLogsInput& input);

}  // namespace kv::mnn::logs
