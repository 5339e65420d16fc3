// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>

#include "lib/engines/mnn/logs/text.h"

namespace kv::mnn::logs {

// What llm_demo wrote for real prompts, and the reports that the engine's tools make of it: the
// same keys and the same numbers.

// "prompt tokens num = 512" and its like, those that occur: prompt_tokens, decode_tokens,
// prefill_s, decode_s.
Json ParseDemoStdout(std::string_view text);
// The last line of a metrics jsonl; an empty object if there is none that parses.
Json LastMetrics(std::string_view jsonl);
// "512" of "prompt_512_3.txt"; "other".
std::string PromptBucket(std::string_view prompt_file);

// One prompt's run, as a line of *_runs.jsonl.
struct DemoRunFiles {
  std::string run_tag, prompt_file;
  int64_t return_code = 0;
  std::string_view standard_output, standard_error, metrics_jsonl;
  std::string stdout_log, stderr_log, metrics_path;  // as printed
};
Json DemoRun(const DemoRunFiles& files, int64_t run_index);
// The figures over rows of runs.
Json SummariseRuns(const Json& rows);
// A whole *_summary.json as far as the report needs it: the figures, and those of each bucket.
Json SummariseBuckets(const Json& rows);

struct DemoOptions {
  double decode_drop_target = 0.08;
  bool require_runtime_decomp = true;
  bool require_decode_cache_hit = false;
  bool require_baseline_decode = true;
  bool require_bucket_decode_pass = true;
  std::string run_order = "baseline_first";
};
// llm_demo_report.json of two summaries, named as printed.
Json DemoReport(const Json& baseline, std::string_view baseline_name, const Json& candidate,
                std::string_view candidate_name, const DemoOptions& options);

}  // namespace kv::mnn::logs
