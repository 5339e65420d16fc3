// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/decide.h"
#include "lib/engines/mnn/logs/logs.h"
#include "lib/engines/mnn/logs/suite.h"

namespace kv::mnn::logs {

// What the logs of a case really say, beside the engine's figures: the worst row where the engine
// takes the best one, the bytes that were compressed where it takes an offline estimate, like
// compared with like, and the noise of its baselines.

// One figure over the rows of a case.
struct Spread {
  std::optional<double> least, mean, median, most;
  std::string least_log, most_log;  // the log of that row
};
Json SpreadJson(const Spread& spread);

struct RuntimeFacts {
  size_t rows = 0;
  Spread lossy, lossless, decode, decomp_us, async_wait_us, queue_peak, fallback, backpressure_skip,
      cache_hit, cache_activity, async_queue_peak;
  Spread measured;                           // raw over compressed bytes of each row with any
  std::optional<double> raw_mb, comp_mb;     // means of the rows
  std::optional<double> repeat_deviation;    // of the decode speed over repetitions, relative
  std::optional<double> like_for_like_drop;  // rows against baseline rows of the same lengths
  std::vector<std::string> notes = {};

  // Of the rows' ratios, where they are known; else of their bytes together.
  std::optional<double> measured_ratio_mean() const;
};
// From the table, exactly; `baseline` holds the rows of the same-batch baseline, if any.
RuntimeFacts FactsOfTable(const BenchTable& table, const BenchTable* baseline);
// From the text of the analyzer's report: its averages, its maxima and the rows that it lists.
RuntimeFacts FactsOfReport(std::string_view markdown);
// The bullets above its quality gate.
GateBullets ReportAverages(std::string_view markdown);

// The thresholds that a report says it applied, over `otherwise`.
AnalyzerOptions OptionsOfReport(const GateBullets& bullets, AnalyzerOptions otherwise);

std::vector<RuleOutcome> RuntimeRules(const RuntimeFacts& facts, const GateBullets& engine,
                                      const AnalyzerOptions& options, const BaselineNoise& noise);
Json RuntimeFigures(const RuntimeFacts& facts, const BaselineNoise& noise);

// The rules of a llm_demo report, and those it lacks. The lossy target of the engine's bench fails
// it only where it was asked for.
std::vector<RuleOutcome> DemoRules(const Json& report, const AnalyzerOptions& options,
                                   const BaselineNoise& noise, bool lossy_asked);
Json DemoFigures(const Json& report, const BaselineNoise& noise);

// [H2O-LOSSLESS] lines: one per layer call that compressed.
struct LosslessLines {
  uint64_t count = 0;
  uint64_t of_192_tokens = 0;   // the grouping of an older engine
  uint64_t most_fallbacks = 0;  // of any line
  struct Layer {
    uint64_t layer = 0, lines = 0;
    double last_ratio = 0, fallbacks = 0;
  };
  std::vector<Layer> layers = {};
};
void ScanLosslessLines(std::string_view text, LosslessLines& lines);

}  // namespace kv::mnn::logs
