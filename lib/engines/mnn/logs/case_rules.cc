// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/engines/mnn/logs/case.h"

namespace kv::mnn::logs {
namespace {

// A count of bad things that must be 0, or of good ones that must not.
EngineRule CountRule(std::string_view metric, std::string_view op, uint64_t count,
                     std::string_view reason) {
  EngineRule rule;
  rule.metric = metric;
  rule.op = op;
  rule.limit = 0;
  rule.value = static_cast<double>(count);
  rule.status = (op == ">") == (count > 0) ? RuleStatus::kPass : RuleStatus::kFail;
  if (rule.status == RuleStatus::kFail) rule.reason = reason;
  return rule;
}

uint64_t RowsThatCompress(const CaseLogs& logs) {
  const std::vector<AnalyzerRow> rows = ExactRows(logs.bench.table);
  return static_cast<uint64_t>(std::count_if(rows.begin(), rows.end(), [](const AnalyzerRow& row) {
    return row.raw_mb > 0 && row.lossless > 1;
  }));
}

// The engine's own word on the case, from all its documents.
EngineRule VerdictRule(const Denial& denial) {
  EngineRule rule;
  rule.metric = denial.metric;
  rule.op = "==";
  rule.engine_pass = false;
  rule.status = RuleStatus::kFail;
  rule.reason = denial.reason;
  return rule;
}

// Lines of a broken cache where the analyzer's rules do not speak of them, or read fewer logs.
void AddDamageRule(const CaseLogs& logs, const AnalyzerOptions& options, EngineCase& engine_case) {
  const InvalidLines& lines = logs.evidence.damage.lines();
  const auto found =
      std::find_if(engine_case.rules.begin(), engine_case.rules.end(),
                   [](const EngineRule& rule) { return rule.metric == "kv_invalid_log_count"; });
  if (found == engine_case.rules.end() && logs.evidence.damage.logs() == 0) return;
  EngineRule rule = CountRule("kv_invalid_log_count", "<=", 0, "");
  if (found != engine_case.rules.end()) rule = *found;
  const auto count = static_cast<double>(lines.count);
  const auto allowed = static_cast<double>(std::max<int64_t>(0, options.max_kv_invalid_log_lines));
  rule.limit = allowed;
  rule.value = std::max(rule.value.value_or(0), count);
  rule.status = *rule.value <= allowed ? RuleStatus::kPass : RuleStatus::kFail;
  rule.evidence = true;
  if (lines.count > 0) {
    rule.reason = "lines that say the cache is broken: " + lines.examples.front();
  }
  if (found != engine_case.rules.end()) {
    *found = std::move(rule);
  } else {
    engine_case.rules.push_back(std::move(rule));
  }
}

// A range that fell back was not kept as the case says, whatever limit the engine was given.
void AddFallbackRule(const CaseLogs& logs, EngineCase& engine_case) {
  if (!logs.facts || !logs.facts->fallback.most) return;
  const auto found =
      std::find_if(engine_case.rules.begin(), engine_case.rules.end(),
                   [](const EngineRule& rule) { return rule.metric == "runtime_fallback_best"; });
  if (found != engine_case.rules.end()) {
    found->evidence = true;
    return;
  }
  EngineRule rule = CountRule("runtime_fallback_best", "<=", 0, "");
  rule.value = logs.facts->fallback.most;
  rule.log = logs.facts->fallback.most_log;
  rule.evidence = true;
  if (*rule.value > 0) {
    rule.status = RuleStatus::kFail;
    rule.reason = "the engine was given no limit; --max-lossless-fallback allows more";
  }
  engine_case.rules.push_back(std::move(rule));
}

}  // namespace

void AddEvidenceRules(const CaseLogs& logs, const AnalyzerOptions& options,
                      EngineCase& engine_case) {
  const Evidence& evidence = logs.evidence;
  AddFallbackRule(logs, engine_case);
  AddDamageRule(logs, options, engine_case);
  const auto add = [&](EngineRule rule) {
    rule.evidence = true;
    engine_case.rules.push_back(std::move(rule));
  };
  if (logs.bench.runs > 0) {
    const std::vector<std::string>& failures = logs.bench.failures;
    add(CountRule("bench_runs_failed", "<=", logs.bench.failed_runs,
                  failures.empty() ? std::string() : "manifest.json: " + failures.front()));
  }
  add(CountRule("non_finite_figures", "<=", evidence.non_finite.count, evidence.non_finite.Text()));
  add(CountRule("missing_evidence", "<=", evidence.gaps.count, evidence.gaps.Text()));
  for (const Denial& denial : evidence.denials) add(VerdictRule(denial));
}

void AddLineRules(const CaseLogs& logs, const AnalyzerOptions& options, EngineCase& engine_case) {
  const LosslessLines& lines = logs.bench.lossless;
  const bool expected = logs.bench.has_stdout && logs.suite_case.name != "runtime_baseline" &&
                        (options.runtime_mode == "full" || options.runtime_mode == "store");
  if (expected || lines.count > 0) {
    engine_case.rules.push_back(
        CountRule("h2o_lossless_lines", ">", lines.count,
                  "no [H2O-LOSSLESS] line: the lossless runtime never ran"));
  }
  const bool compresses =
      !options.runtime_mode.empty() && logs.suite_case.name != "runtime_baseline";
  if (compresses && logs.bench.table.HasColumn("h2o_lossless_raw_mb")) {
    engine_case.rules.push_back(
        CountRule("h2o_lossless_rows", ">", RowsThatCompress(logs),
                  "no row has raw bytes and a lossless ratio above 1, as the "
                  "engine's script asks"));
  }
  if (lines.count == 0) return;
  // The engine's counters leave out fallbacks of layers where nothing was compressed; its lines do
  // not.
  EngineRule fallbacks = CountRule("h2o_lossless_line_fallbacks", "<=", 0, "");
  fallbacks.limit = std::max(0.0, options.max_lossless_fallback);
  fallbacks.value = static_cast<double>(lines.most_fallbacks);
  fallbacks.evidence = true;
  const bool holds = *fallbacks.value <= *fallbacks.limit;
  fallbacks.status = holds ? RuleStatus::kPass : RuleStatus::kFail;
  if (!holds) fallbacks.reason = "a [H2O-LOSSLESS] line tells of more, whatever the table says";
  engine_case.rules.push_back(std::move(fallbacks));
  engine_case.rules.push_back(CountRule("h2o_lossless_lines_of_192_tokens",
                                        "<=", lines.of_192_tokens,
                                        "an engine that still groups 192 tokens"));
  Json layers = Json::array();
  for (const LosslessLines::Layer& layer : lines.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"lines", layer.lines},
                      {"ratio", layer.last_ratio},
                      {"fallbacks", layer.fallbacks}});
  }
  if (engine_case.true_figures.is_null()) engine_case.true_figures = Json::object();
  engine_case.true_figures["layers"] = std::move(layers);
}

}  // namespace kv::mnn::logs
