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

// What the logs of a case really say, beside the engine's own figures. The engine takes the best
// row, we take the worst; it takes an offline estimate, we take the bytes that were compressed; we
// compare rows of equal lengths, and mind the noise of the baselines. Implemented by facts.cc (the
// figures), truth.cc (the rules) and truth_demo.cc (those of llm_demo).

// One figure over the rows of a case.
struct Spread {
  std::optional<double> least, mean, median, most;
  std::string least_log, most_log;  // the log and row that have it
};
Json SpreadJson(const Spread& spread);

struct RuntimeFacts {
  size_t rows = 0;
  Spread lossy, lossless, decode, decomp_us, async_wait_us, queue_peak, fallback, backpressure_skip,
      cache_hit, cache_activity, async_queue_peak;
  Spread measured;                           // raw over compressed bytes, of rows that have any
  std::optional<double> selected_lossless;   // the engine's estimate, if it is all there is
  std::optional<double> raw_mb, comp_mb;     // means over the rows
  std::optional<double> repeat_deviation;    // relative, of the decode speed over repetitions
  std::optional<double> like_for_like_drop;  // against baseline rows of the same lengths
  std::vector<std::string> notes = {};

  // The mean of the rows' ratios if they are known, else the ratio of their mean bytes.
  std::optional<double> measured_ratio_mean() const;
};
// Takes the facts from the table. `baseline` holds the rows of the same-batch baseline, if any.
RuntimeFacts FactsOfTable(const BenchTable& table, const BenchTable* baseline);
// Takes the facts from the analyzer's report: its averages, its maxima and the rows that it lists.
RuntimeFacts FactsOfReport(std::string_view markdown);
// The bullets above the report's quality gate.
GateBullets ReportAverages(std::string_view markdown);

// The thresholds that a report says it applied; those that it does not name from `otherwise`.
AnalyzerOptions OptionsOfReport(const GateBullets& bullets, AnalyzerOptions otherwise);

std::vector<RuleOutcome> RuntimeRules(const RuntimeFacts& facts, const GateBullets& engine,
                                      const AnalyzerOptions& options, const BaselineNoise& noise);
Json RuntimeFigures(const RuntimeFacts& facts, const BaselineNoise& noise);

// The rules of an llm_demo report, and those that it lacks. A ratio below the lossy target of the
// engine's bench fails it only if the target was asked for (`lossy_asked`).
std::vector<RuleOutcome> DemoRules(const Json& report, const AnalyzerOptions& options,
                                   const BaselineNoise& noise, bool lossy_asked);
Json DemoFigures(const Json& report, const BaselineNoise& noise);

// The [H2O-LOSSLESS] lines of a log: one per layer call that compressed.
struct LosslessLines {
  uint64_t count = 0;
  uint64_t of_192_tokens = 0;   // grouped as an older engine does
  uint64_t most_fallbacks = 0;  // the largest number in any line
  struct Layer {
    uint64_t layer = 0, lines = 0;
    double last_ratio = 0, fallbacks = 0;
  };
  std::vector<Layer> layers = {};
};
void ScanLosslessLines(std::string_view text, LosslessLines& lines);

}  // namespace kv::mnn::logs
