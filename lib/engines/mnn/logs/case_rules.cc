// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/engines/mnn/logs/case.h"

namespace kv::mnn::logs {
namespace {

using gate::CaseResult;

// A count of bad things that must be 0, or of good ones that must not.
RuleOutcome CountRule(std::string_view metric, Op op, uint64_t count, std::string_view reason) {
  return Decide(metric, op, 0, static_cast<double>(count), {}, reason);
}

uint64_t RowsThatCompress(const CaseLogs& logs) {
  const std::vector<AnalyzerRow> rows = ExactRows(logs.bench.table);
  return static_cast<uint64_t>(std::count_if(rows.begin(), rows.end(), [](const AnalyzerRow& row) {
    return row.raw_mb > 0 && row.lossless > 1;
  }));
}

// The engine's own word on the case, from all its documents.
RuleOutcome VerdictRule(const Denial& denial) {
  RuleOutcome rule = NewRule(denial.metric, Op::kEqual);
  rule.engine_pass = false;
  rule.status = Status::kFail;
  rule.reason = denial.reason;
  return rule;
}

// Lines of a broken cache where the analyzer's rules do not speak of them, or read fewer logs.
void AddDamageRule(const CaseLogs& logs, const AnalyzerOptions& options, CaseResult& result) {
  const InvalidLines& lines = logs.evidence.damage.lines();
  const auto found = std::find_if(
      result.rules.begin(), result.rules.end(),
      [](const RuleOutcome& rule) { return rule.rule.metric == "kv_invalid_log_count"; });
  if (found == result.rules.end() && logs.evidence.damage.logs() == 0) return;
  RuleOutcome rule = CountRule("kv_invalid_log_count", Op::kAtMost, 0, "");
  if (found != result.rules.end()) rule = *found;
  const auto count = static_cast<double>(lines.count);
  const auto allowed = static_cast<double>(std::max<int64_t>(0, options.max_kv_invalid_log_lines));
  rule.rule.limit = allowed;
  rule.value = std::max(rule.value.value_or(0), count);
  rule.status = *rule.value <= allowed ? Status::kPass : Status::kFail;
  rule.rule.implied = true;
  if (lines.count > 0) {
    rule.reason = "lines that say the cache is broken: " + lines.examples.front();
  }
  if (found != result.rules.end()) {
    *found = std::move(rule);
  } else {
    result.rules.push_back(std::move(rule));
  }
}

// A range that fell back was not kept as the case says, whatever limit the engine was given.
void AddFallbackRule(const CaseLogs& logs, CaseResult& result) {
  if (!logs.facts || !logs.facts->fallback.most) return;
  const auto found = std::find_if(
      result.rules.begin(), result.rules.end(),
      [](const RuleOutcome& rule) { return rule.rule.metric == "runtime_fallback_best"; });
  if (found != result.rules.end()) {
    found->rule.implied = true;
    return;
  }
  RuleOutcome rule = CountRule("runtime_fallback_best", Op::kAtMost, 0, "");
  rule.value = logs.facts->fallback.most;
  rule.where.log = logs.facts->fallback.most_log;
  rule.rule.implied = true;
  if (*rule.value > 0) {
    rule.status = Status::kFail;
    rule.reason = "the engine was given no limit; --max-lossless-fallback allows more";
  }
  result.rules.push_back(std::move(rule));
}

}  // namespace

void AddEvidenceRules(const CaseLogs& logs, const AnalyzerOptions& options, CaseResult& result) {
  const Evidence& evidence = logs.evidence;
  AddFallbackRule(logs, result);
  AddDamageRule(logs, options, result);
  const auto add = [&](RuleOutcome rule) {
    rule.rule.implied = true;
    result.rules.push_back(std::move(rule));
  };
  if (logs.bench.runs > 0) {
    const std::vector<std::string>& failures = logs.bench.failures;
    add(CountRule("bench_runs_failed", Op::kAtMost, logs.bench.failed_runs,
                  failures.empty() ? std::string() : "manifest.json: " + failures.front()));
  }
  add(CountRule("non_finite_figures", Op::kAtMost, evidence.non_finite.count,
                evidence.non_finite.Text()));
  add(CountRule("missing_evidence", Op::kAtMost, evidence.gaps.count, evidence.gaps.Text()));
  for (const Denial& denial : evidence.denials) add(VerdictRule(denial));
}

void AddLineRules(const CaseLogs& logs, const AnalyzerOptions& options, CaseResult& result) {
  const LosslessLines& lines = logs.bench.lossless;
  const bool expected = logs.bench.has_stdout && logs.suite_case.name != "runtime_baseline" &&
                        (options.runtime_mode == "full" || options.runtime_mode == "store");
  if (expected || lines.count > 0) {
    result.rules.push_back(CountRule("h2o_lossless_lines", Op::kAbove, lines.count,
                                     "no [H2O-LOSSLESS] line: the lossless runtime never ran"));
  }
  const bool compresses =
      !options.runtime_mode.empty() && logs.suite_case.name != "runtime_baseline";
  if (compresses && logs.bench.table.HasColumn("h2o_lossless_raw_mb")) {
    result.rules.push_back(CountRule("h2o_lossless_rows", Op::kAbove, RowsThatCompress(logs),
                                     "no row has raw bytes and a lossless ratio above 1, as the "
                                     "engine's script asks"));
  }
  if (lines.count == 0) return;
  // The engine's counters leave out fallbacks of layers where nothing was compressed; its lines do
  // not.
  RuleOutcome fallbacks = CountRule("h2o_lossless_line_fallbacks", Op::kAtMost, 0, "");
  fallbacks.rule.limit = std::max(0.0, options.max_lossless_fallback);
  fallbacks.value = static_cast<double>(lines.most_fallbacks);
  fallbacks.rule.implied = true;
  const bool holds = *fallbacks.value <= fallbacks.rule.limit;
  fallbacks.status = holds ? Status::kPass : Status::kFail;
  if (!holds) fallbacks.reason = "a [H2O-LOSSLESS] line tells of more, whatever the table says";
  result.rules.push_back(std::move(fallbacks));
  result.rules.push_back(CountRule("h2o_lossless_lines_of_192_tokens", Op::kAtMost,
                                   lines.of_192_tokens, "an engine that still groups 192 tokens"));
  Json layers = Json::array();
  for (const LosslessLines::Layer& layer : lines.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"lines", layer.lines},
                      {"ratio", layer.last_ratio},
                      {"fallbacks", layer.fallbacks}});
  }
  result.logs->true_figures["layers"] = std::move(layers);
}

}  // namespace kv::mnn::logs
