// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/truth.h"

namespace kv::mnn::logs {

// Reads what llm_demo wrote for real prompts, and makes the reports that the engine's tools make of
// it, with the same keys and numbers.

// Reads lines such as "prompt tokens num = 512". The result has those of the keys prompt_tokens,
// decode_tokens, prefill_s and decode_s whose lines occur.
Json ParseDemoStdout(std::string_view text);
// Returns the bucket from a prompt's file name: "512" for "prompt_512_3.txt", otherwise "other".
std::string PromptBucket(std::string_view prompt_file);

// The files of one prompt's run, from which DemoRun makes the figures of a line of *_runs.jsonl
// that its summary needs.
struct DemoRunFiles {
  std::string prompt_file, standard_output, standard_error, metrics_jsonl;
};
Json DemoRun(const DemoRunFiles& files);
// Returns averages and extremes over rows of runs.
Json SummariseRuns(const Json& rows);
// Returns the part of a *_summary.json that the report needs: the figures of all rows and of each
// bucket.
Json SummariseBuckets(const Json& rows);

struct DemoOptions {
  double decode_drop_target = 0.08;
  bool require_runtime_decomp = true;
  bool require_decode_cache_hit = false;
  bool require_baseline_decode = true;
  bool require_bucket_decode_pass = true;
  std::string run_order = "baseline_first";
};
// Makes llm_demo_report.json from two summaries, whose names appear in it.
Json DemoReport(const Json& baseline, std::string_view baseline_name, const Json& candidate,
                std::string_view candidate_name, const DemoOptions& options);

// Returns the rules of an llm_demo report, and those that it lacks. A ratio below the lossy target
// of the engine's bench fails only if the user asked for the target (`lossy_asked`).
std::vector<RuleOutcome> DemoRules(const Json& report, const AnalyzerOptions& options,
                                   const BaselineNoise& noise, bool lossy_asked);
Json DemoFigures(const Json& report, const BaselineNoise& noise);

}  // namespace kv::mnn::logs
