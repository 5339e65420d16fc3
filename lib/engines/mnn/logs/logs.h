// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/engines/mnn/logs/analyzer.h"

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

enum class RuleStatus { kPass, kFail, kNotRun, kInconclusive };
std::string_view Name(RuleStatus status);  // "pass", "fail", "not_run", "inconclusive"

// One rule of the gate on one case.
struct EngineRule {
  std::string metric;  // the original's key, e.g. lossy_best
  std::string op;      // ">=", "<=", "=="
  std::optional<double> limit = {};
  // What the logs really say, and whether that keeps the rule.
  std::optional<double> value = {};
  RuleStatus status = RuleStatus::kNotRun;
  std::string reason = {};  // why not, or why it differs from the engine's verdict
  // The original's value and verdict of the same rule.
  std::optional<double> engine_value = {};
  std::optional<bool> engine_pass = {};
  std::string log = {};  // the log and row that decided, "logs/run_0001.log row 2"
  // Not a threshold: fails whatever a config asks, and proves nothing by passing.
  bool evidence = false;
};

struct EngineCase {
  std::string suite, name, mode;  // "runtime" or "llm_demo"
  nlohmann::ordered_json engine;  // the original's row, its keys in its order
  RuleStatus status = RuleStatus::kNotRun;
  std::string reason = {};  // the deciding rule in words; empty when all pass
  std::vector<EngineRule> rules = {};
  nlohmann::ordered_json true_figures = {};
  std::vector<std::string> notes = {};  // findings: what the logs contradict or leave open
  std::string gate_markdown = {};  // the analyzer's report, made anew from the logs (may be empty)
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
  RuleStatus status = RuleStatus::kNotRun;
  std::vector<EngineCase> cases;
  std::vector<std::string> absent_cases;  // of the suite's six: nothing was there to judge
  BaselineNoise baseline_noise;           // of the runtime cases
  std::vector<std::string> notes = {};
};

// Throws kOpenFailed, kBadText, kLimit, kMissingRecord (nothing to judge), kUsage (options).
EngineVerdict AnalyzeEngineLogs(const EngineLogsInput& input);

// {name, mode, status, reason, rules, engine, true_figures, notes}: an entry of `cases` in
// kvtool.gate/1.
nlohmann::ordered_json CaseJson(const EngineCase& engine_case);
nlohmann::ordered_json NoiseJson(const BaselineNoise& noise);

// The original's summary.json, summary.md and cases.jsonl, byte for byte.
nlohmann::ordered_json SuiteSummary(const EngineVerdict& verdict, std::string_view generated_at);
std::string SuiteSummaryText(const nlohmann::ordered_json& summary);
std::string SuiteMarkdown(const EngineVerdict& verdict);
std::string SuiteCasesJsonl(const EngineVerdict& verdict);

}  // namespace kv::mnn::logs
