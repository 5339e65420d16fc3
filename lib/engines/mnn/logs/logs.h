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

// Judges what the real engine wrote: reproduces its own numbers and verdict, and sets beside them
// what the same logs really say.

struct EngineLogsInput {
  // The output of the engine's suite (case folders, *.console.log), or a folder or file of bench
  // logs: llm_bench tables or JSON, CSV, metrics jsonl, llm_demo stdout.
  std::filesystem::path path;
  // The path as reports print it; empty means as given.
  std::string shown_as = {};
  // Options of the analyzer by its names. They override those that the suite passes for a case.
  std::vector<std::pair<std::string, std::string>> options = {};
  // The return codes of cases. A case that is not named here is taken to have returned 0.
  std::map<std::string, int64_t> return_codes = {};
  // Offline estimates for a folder of bench logs. A suite's folder has its own.
  std::filesystem::path offline_lossless_json = {}, offline_lossless_online_json = {};
  std::filesystem::path bench_stdout_log = {};
};

// How much the engine's speed varies when nothing is changed, from repeated baselines of a suite.
struct BaselineNoise {
  std::vector<double> tokens_per_second = {};

  double mean() const;
  // Half the spread of the values over their mean, or nothing from fewer than two values.
  std::optional<double> relative() const;
};

struct EngineVerdict {
  std::string path;          // as reports print it
  bool engine_pass = false;  // the engine's own verdict on the whole suite
  gate::Status status = gate::Status::kNotRun;
  std::vector<gate::CaseResult> cases;    // without the engine of their specs
  std::vector<std::string> absent_cases;  // the suite's cases of which there was nothing to judge
  BaselineNoise baseline_noise;           // of the runtime cases
  std::vector<std::string> notes = {};
};

// Throws kOpenFailed, kBadText, kLimit, kMissingRecord (nothing to judge), kUsage (options).
EngineVerdict AnalyzeEngineLogs(const EngineLogsInput& input);

}  // namespace kv::mnn::logs
